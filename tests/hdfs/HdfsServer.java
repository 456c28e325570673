import java.io.File;
import java.io.PrintStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HDFS with one datanode on 127.0.0.1; prints the port of WebHDFS. Argument: its folder. */
public final class HdfsServer {
  private HdfsServer() {}

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // for what Hadoop logs
    Configuration conf = new Configuration();
    conf.set("dfs.permissions.enabled", "false"); // clients name no user
    conf.set("dfs.replication", "1");
    conf.set("dfs.datanode.hostname", "127.0.0.1");
    conf.set("dfs.datanode.http.address", "127.0.0.1:0");
    conf.set("dfs.namenode.http-address", "127.0.0.1:0");
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, new File(arguments[0]))
            .numDataNodes(1)
            .nameNodePort(0)
            .build();
    cluster.waitActive();
    out.println(cluster.getNameNode().getHttpAddress().getPort());
    System.in.read(); // until whoever started it is gone
    cluster.shutdown();
  }
}
