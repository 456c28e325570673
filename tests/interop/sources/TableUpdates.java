package org.apache.iceberg;

import java.util.ArrayList;
import java.util.List;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/**
 * A table's metadata under updates, as Java's builder changes it and Java's parser prints it.
 *
 * <p>{@code metadata} is a metadata.json's text, null for a table to be created.
 */
public final class TableUpdates {
  private TableUpdates() {}

  /** Applies {@code updates} (texts of JSON) to {@code metadata} and prints the result. */
  static Object apply(JsonNode arguments) {
    List<MetadataUpdate> updates = new ArrayList<>();
    for (JsonNode update : arguments.get("updates")) {
      updates.add(MetadataUpdateParser.fromJson(update.asText()));
    }
    TableMetadata.Builder builder;
    if (arguments.get("metadata").isNull()) {
      int version =
          updates.stream()
              .filter(MetadataUpdate.UpgradeFormatVersion.class::isInstance)
              .mapToInt(each -> ((MetadataUpdate.UpgradeFormatVersion) each).formatVersion())
              .findFirst()
              .getAsInt();
      builder = TableMetadata.buildFromEmpty(version);
    } else {
      builder = TableMetadata.buildFrom(parse(arguments));
    }
    updates.forEach(update -> update.applyTo(builder));
    return TableMetadataParser.toJson(builder.build());
  }

  /** Parses {@code metadata} and prints it again. */
  static Object reprint(JsonNode arguments) {
    return TableMetadataParser.toJson(parse(arguments));
  }

  /** Tells whether {@code metadata} meets {@code requirements} (texts of JSON). */
  static Object meets(JsonNode arguments) {
    TableMetadata metadata = arguments.get("metadata").isNull() ? null : parse(arguments);
    try {
      for (JsonNode requirement : arguments.get("requirements")) {
        UpdateRequirementParser.fromJson(requirement.asText()).validate(metadata);
      }
      return true;
    } catch (CommitFailedException unmet) {
      return false;
    }
  }

  /** Gives the column c of the schema {@code before} its type in the schema {@code after}. */
  static Object changeType(JsonNode arguments) {
    Schema before = SchemaParser.fromJson(arguments.get("before").asText());
    Schema after = SchemaParser.fromJson(arguments.get("after").asText());
    SchemaUpdate update = new SchemaUpdate(before, before.highestFieldId());
    if (arguments.get("by").asText().equals("union_by_name")) {
      update.unionByNameWith(after);
    } else {
      update.updateColumn("c", after.findType("c").asPrimitiveType());
    }
    return SchemaParser.toJson(update.apply());
  }

  private static TableMetadata parse(JsonNode arguments) {
    return TableMetadataParser.fromJson(arguments.get("metadata").asText());
  }
}
