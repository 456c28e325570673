"""The metastore of the Spark session, served as Hive's is: Thrift on 127.0.0.1.

For clients outside the JVM, PyIceberg's HiveCatalog first of all. The server runs in Spark's JVM,
on the same Derby database in memory. Independent of Iceberg.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .spark import SparkTables


@contextmanager
def served_metastore(spark: SparkTables) -> Iterator[str]:
    """Serve the metastore; give its URI."""
    jvm: Any = spark.jvm
    hive, thrift = jvm.org.apache.hadoop.hive, jvm.org.apache.thrift
    settings = spark.session._jsparkSession.sessionState().newHadoopConf()
    conf = hive.conf.HiveConf(settings, settings.getClass())
    base = getattr(jvm, "org.apache.hadoop.hive.metastore.HiveMetaStore$HMSHandler")
    handler = hive.metastore.HiveMetaStore.newRetryingHMSHandler(
        base("served", conf, False), conf, True
    )
    # Hive's own main class would listen on every interface.
    address = jvm.java.net.InetSocketAddress(jvm.java.net.InetAddress.getByName("127.0.0.1"), 0)
    socket = thrift.transport.TServerSocket(address)
    arguments = getattr(jvm, "org.apache.thrift.server.TThreadPoolServer$Args")(socket)
    arguments.processor(hive.metastore.TSetIpAddressProcessor(handler))
    arguments.protocolFactory(getattr(jvm, "org.apache.thrift.protocol.TBinaryProtocol$Factory")())
    server = thrift.server.TThreadPoolServer(arguments)
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    try:
        yield f"thrift://127.0.0.1:{socket.getServerSocket().getLocalPort()}"
    finally:
        server.stop()
        serving.join(10)
