import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * The reference server of the REST protocol on 127.0.0.1; prints its port. Arguments: the warehouse,
 * and the URI of the JDBC catalog's database.
 */
public final class RestServer {
  private RestServer() {}

  public static void main(String[] arguments) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize(
        "rest",
        Map.of(
            "uri", arguments[1],
            "clients", "1",
            "jdbc.schema-version", "V1",
            "warehouse", arguments[0],
            "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO"));
    ServletContextHandler handler = new ServletContextHandler();
    RESTCatalogServlet servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
    handler.addServlet(new ServletHolder(servlet), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(handler);
    server.start();
    System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
    System.in.read(); // until whoever started it is gone
    server.stop();
  }
}
