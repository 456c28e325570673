"""How the jobs over files run: cut (``planning``), done in tasks (``work``), driven (``running``),
and given their names (``publishing``)."""
