package ags1.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;

/** Answers requests, a line of JSON each, until its input ends. */
public final class Requests {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Requests() {}

  public static void main(String[] none) throws Exception {
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err); // whatever a library prints is no answer
    BufferedReader requests =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      answers.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
    }
  }

  private static Map<String, Object> answer(JsonNode request) {
    try {
      String call = request.get("call").asText();
      int dot = call.lastIndexOf('.');
      Method method =
          Class.forName(call.substring(0, dot))
              .getDeclaredMethod(call.substring(dot + 1), JsonNode.class);
      method.setAccessible(true);
      return result(method.invoke(null, request.get("arguments")));
    } catch (InvocationTargetException thrown) {
      thrown.getCause().printStackTrace();
      return Map.of("error", describe(thrown.getCause()));
    } catch (ReflectiveOperationException | LinkageError missing) {
      return Map.of("error", describe(missing));
    }
  }

  private static Map<String, Object> result(Object value) {
    Map<String, Object> answer = new java.util.HashMap<>();
    answer.put("result", value);
    return answer;
  }

  private static String describe(Throwable thrown) {
    StringBuilder text = new StringBuilder();
    for (Throwable each = thrown; each != null; each = each.getCause()) {
      text.append(text.length() == 0 ? "" : "; caused by ").append(each);
    }
    return text.toString();
  }
}
