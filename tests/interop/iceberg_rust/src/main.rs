//! The released iceberg-rust behind a line protocol: one JSON request per line on stdin, one JSON
//! answer per line on stdout, `{"result": …}` or `{"error": …}`.
//!
//! Bytes are in hex; files are named by their paths. Only public functions of the crate are called.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use futures::TryStreamExt;
use iceberg::arrow::schema_to_arrow_schema;
use iceberg::encryption::kms::MemoryKeyManagementClient;
use iceberg::encryption::{
    EncryptedInputFile, EncryptedOutputFile, EncryptionManager, SensitiveBytes,
    StandardKeyMetadata,
};
use iceberg::io::FileIO;
use iceberg::spec::{
    DataContentType, EncryptedKey, FormatVersion, ManifestListWriter, ManifestWriterBuilder,
    NestedField, Operation, PartitionSpec, PrimitiveType, Schema, Snapshot, SortOrder, Struct,
    Summary, TableMetadata, TableMetadataBuilder, Type,
};
use iceberg::table::Table;
use iceberg::writer::file_writer::{FileWriter, FileWriterBuilder, ParquetWriterBuilder};
use iceberg::{Runtime, TableIdent};
use parquet::encryption::encrypt::FileEncryptionProperties;
use parquet::file::properties::WriterProperties;
use serde_json::{json, Value};

type Failure = Box<dyn std::error::Error>;

const SNAPSHOT: i64 = 4242;
const SEQUENCE_NUMBER: i64 = 1;

fn text<'a>(request: &'a Value, name: &str) -> Result<&'a str, Failure> {
    request[name]
        .as_str()
        .ok_or_else(|| format!("{name} is missing").into())
}

fn bytes(request: &Value, name: &str) -> Result<Vec<u8>, Failure> {
    Ok(hex::decode(text(request, name)?)?)
}

/// The key metadata of a stream: `key`, `aad_prefix` and `file_length`, both or null.
fn key_metadata(request: &Value) -> Result<StandardKeyMetadata, Failure> {
    let mut made = StandardKeyMetadata::new(&bytes(request, "key")?);
    if !request["aad_prefix"].is_null() {
        made = made.with_aad_prefix(&bytes(request, "aad_prefix")?);
    }
    if let Some(length) = request["file_length"].as_str() {
        made = made.with_file_length(length.parse()?);
    }
    Ok(made)
}

/// The master keys of the request in iceberg-rust's KMS for tests, which wraps as Java's does.
fn kms(request: &Value) -> Result<Arc<MemoryKeyManagementClient>, Failure> {
    let made = MemoryKeyManagementClient::new();
    for (name, key) in request["master_keys"].as_object().ok_or("no master_keys")? {
        let key = hex::decode(key.as_str().ok_or("a master key is not text")?)?;
        made.add_master_key_bytes(name, SensitiveBytes::new(key))?;
    }
    Ok(Arc::new(made))
}

/// Decrypts the file `path` as a table's files are, and writes the plaintext to `output`.
async fn read_stream(request: &Value) -> Result<Value, Failure> {
    let stored = FileIO::new_with_fs().new_input(text(request, "path")?)?;
    let plaintext = EncryptedInputFile::new(stored, key_metadata(request)?).read().await?;
    std::fs::write(text(request, "output")?, &plaintext)?;
    Ok(Value::Null)
}

/// Encrypts the file `path` to `output`.
async fn write_stream(request: &Value) -> Result<Value, Failure> {
    let plaintext = Bytes::from(std::fs::read(text(request, "path")?)?);
    let stored = FileIO::new_with_fs().new_output(text(request, "output")?)?;
    EncryptedOutputFile::new(stored, key_metadata(request)?).write(plaintext).await?;
    Ok(Value::Null)
}

/// Parses key metadata.
fn parse_key_metadata(request: &Value) -> Result<Value, Failure> {
    let parsed = StandardKeyMetadata::decode(&bytes(request, "bytes")?)?;
    Ok(json!({
        "key": hex::encode(parsed.encryption_key().as_bytes()),
        "aad_prefix": parsed.aad_prefix().map(hex::encode),
        "file_length": parsed.file_length().map(|length| length.to_string()),
    }))
}

/// Unwraps the key metadata `key_id` of a manifest list, with the entries `keys` of a table.
async fn open_envelope(request: &Value) -> Result<Value, Failure> {
    let mut keys = HashMap::new();
    for entry in request["keys"].as_array().ok_or("no keys")? {
        let key: EncryptedKey = serde_json::from_value(entry.clone())?;
        keys.insert(key.key_id().to_string(), key);
    }
    let manager = EncryptionManager::builder()
        .kms_client(kms(request)?)
        .table_key_id(text(request, "table_key_id")?)
        .encryption_keys(keys)
        .build();
    let opened = manager.decrypt_manifest_list_key_metadata(text(request, "key_id")?).await?;
    Ok(json!(hex::encode(opened.encode()?)))
}

async fn open_table(request: &Value) -> Result<Table, Failure> {
    let io = FileIO::new_with_fs();
    let metadata = TableMetadata::read_from(&io, text(request, "metadata")?).await?;
    Ok(Table::builder()
        .file_io(io)
        .metadata(metadata)
        .identifier(TableIdent::from_strs(["db", "t"])?)
        .kms_client(kms(request)?)
        .runtime(Runtime::current())
        .readonly(true)
        .build()?)
}

/// Lists the data files that a scan of the table `metadata` would read.
async fn plan_table(request: &Value) -> Result<Value, Failure> {
    let table = open_table(request).await?;
    let planned = table.scan().build()?.plan_files().await?;
    let tasks: Vec<_> = planned.try_collect().await?;
    let listed = tasks.iter().map(|task| {
        json!({
            "path": task.data_file_path,
            "format": task.data_file_format.to_string(),
            "rows": task.record_count,
            "deletes": task.deletes.iter().map(|file| &file.file_path).collect::<Vec<_>>(),
        })
    });
    Ok(listed.collect())
}

/// Counts the rows of the table `metadata` by reading them.
async fn count_rows(request: &Value) -> Result<Value, Failure> {
    let batches = open_table(request).await?.scan().build()?.to_arrow().await?;
    let batches: Vec<_> = batches.try_collect().await?;
    Ok(json!(batches.iter().map(RecordBatch::num_rows).sum::<usize>()))
}

/// Writes a table of `rows` rows under the folder `location`; returns its metadata file.
///
/// The release commits no encrypted table itself (`Transaction::commit` refuses). Every file here
/// is written by its own writers, as its next version's commit puts them together.
async fn write_table(request: &Value) -> Result<Value, Failure> {
    let (io, location) = (FileIO::new_with_fs(), text(request, "location")?);
    let key_id = text(request, "table_key_id")?;
    let manager = EncryptionManager::builder()
        .kms_client(kms(request)?)
        .table_key_id(key_id)
        .build();
    let long = Type::Primitive(PrimitiveType::Long);
    let string = Type::Primitive(PrimitiveType::String);
    let schema = Arc::new(
        Schema::builder()
            .with_fields([
                Arc::new(NestedField::required(1, "id", long)),
                Arc::new(NestedField::optional(2, "name", string)),
            ])
            .build()?,
    );
    let spec = PartitionSpec::unpartition_spec();

    let count = request["rows"].as_i64().ok_or("rows is missing")?;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values(
        (0..count).map(|id| format!("row {id}")),
    ));
    let batch = RecordBatch::try_new(Arc::new(schema_to_arrow_schema(&schema)?), vec![ids, names])?;
    let output = manager.encrypt(io.new_output(format!("{location}/data/rows.parquet"))?);
    let of_file = output.key_metadata().clone();
    let encryption = FileEncryptionProperties::builder(of_file.encryption_key().as_bytes().to_vec())
        .with_aad_prefix(of_file.aad_prefix().unwrap_or_default().to_vec())
        .with_aad_prefix_storage(false)
        .build()?;
    let properties = WriterProperties::builder().with_file_encryption_properties(encryption).build();
    let mut writer = ParquetWriterBuilder::new(properties, schema.clone())
        .build(output.into_inner())
        .await?;
    writer.write(&batch).await?;
    let mut written = writer.close().await?.remove(0);
    let data_file = written
        .content(DataContentType::Data)
        .partition(Struct::empty())
        .partition_spec_id(spec.spec_id())
        .key_metadata(Some(of_file.encode()?.to_vec()))
        .build()?;

    let output = manager.encrypt(io.new_output(format!("{location}/metadata/m0.avro"))?);
    let mut manifest = ManifestWriterBuilder::new_from_encrypted(
        output,
        Some(SNAPSHOT),
        schema.clone(),
        spec.clone(),
    )?
    .build_v3_data();
    manifest.add_file(data_file, SEQUENCE_NUMBER)?;
    let manifest = manifest.write_manifest_file().await?;

    let list = format!("{location}/metadata/snap-{SNAPSHOT}.avro");
    let output = manager.encrypt(io.new_output(&list)?);
    let of_list = output.key_metadata().clone();
    let stream = output.writer().await?;
    let mut writer = ManifestListWriter::v3(stream, SNAPSHOT, None, SEQUENCE_NUMBER, Some(0));
    writer.add_manifests([manifest].into_iter())?;
    writer.close().await?;
    let list_key = manager.encrypt_manifest_list_key_metadata(&of_list).await?;

    let properties = HashMap::from([("encryption.key-id".to_string(), key_id.to_string())]);
    let mut metadata = TableMetadataBuilder::new(
        schema.as_ref().clone(),
        spec,
        SortOrder::unsorted_order(),
        location.to_string(),
        FormatVersion::V3,
        properties,
    )?;
    for key in manager.with_encryption_keys(|keys| keys.values().cloned().collect::<Vec<_>>()) {
        metadata = metadata.add_encryption_key(key);
    }
    let made_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let snapshot = Snapshot::builder()
        .with_snapshot_id(SNAPSHOT)
        .with_sequence_number(SEQUENCE_NUMBER)
        .with_timestamp_ms(made_at.as_millis() as i64)
        .with_manifest_list(list)
        .with_summary(Summary {
            operation: Operation::Append,
            additional_properties: HashMap::new(),
        })
        .with_schema_id(0)
        .with_encryption_key_id(Some(list_key))
        .with_row_range(0, count as u64)
        .build();
    let metadata = metadata.set_branch_snapshot(snapshot, "main")?.build()?.metadata;
    let path = format!("{location}/metadata/00000-{}.metadata.json", metadata.uuid());
    io.new_output(&path)?.write(serde_json::to_vec(&metadata)?.into()).await?;
    Ok(json!(path))
}

async fn answer(request: &Value) -> Result<Value, Failure> {
    match text(request, "call")? {
        "read_stream" => read_stream(request).await,
        "write_stream" => write_stream(request).await,
        "parse_key_metadata" => parse_key_metadata(request),
        "open_envelope" => open_envelope(request).await,
        "plan_table" => plan_table(request).await,
        "count_rows" => count_rows(request).await,
        "write_table" => write_table(request).await,
        other => Err(format!("unknown call: {other}").into()),
    }
}

fn main() -> Result<(), Failure> {
    std::panic::set_hook(Box::new(|_| {})); // a panic is an answer here
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let done = catch_unwind(AssertUnwindSafe(|| runtime.block_on(answer(&request))));
        let said = match done {
            Ok(Ok(result)) => json!({ "result": result }),
            Ok(Err(failure)) => json!({ "error": failure.to_string() }),
            Err(_) => json!({ "error": "panic" }),
        };
        println!("{said}");
        io::stdout().flush()?;
    }
    Ok(())
}
