//! iceberg-rust's public AGS1 reader and writer over kept memory, driven by lines on stdin.
//!
//! The protocol is that of `bench/peers/process.py`.

use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use iceberg::encryption::{AesGcmCipher, AesGcmFileRead, AesGcmFileWrite, SecureKey};
use iceberg::io::{FileRead, FileWrite};

type Failure = Box<dyn std::error::Error>;

/// Whole blocks, so that the reader never opens a block twice.
const PIECE: usize = 1 << 20;

/// A sink that is cleared and filled again, so that its memory is paid for once.
struct Sink(Arc<Mutex<Vec<u8>>>);

#[async_trait]
impl FileWrite for Sink {
    async fn write(&mut self, bytes: Bytes) -> iceberg::Result<()> {
        self.0.lock().expect("one thread").extend_from_slice(&bytes);
        Ok(())
    }

    async fn close(&mut self) -> iceberg::Result<()> {
        Ok(())
    }
}

/// A source that hands out slices of one buffer without copying.
struct Source(Bytes);

#[async_trait]
impl FileRead for Source {
    async fn read(&self, range: Range<u64>) -> iceberg::Result<Bytes> {
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

#[derive(Default)]
struct State {
    key: Vec<u8>,
    aad_prefix: Vec<u8>,
    plaintext: Bytes,
    sealed: Arc<Mutex<Vec<u8>>>,
    opened: Vec<u8>,
}

impl State {
    fn cipher(&self) -> Result<Arc<AesGcmCipher>, Failure> {
        Ok(Arc::new(AesGcmCipher::new(SecureKey::new(&self.key)?)))
    }

    async fn seal(&mut self) -> Result<u128, Failure> {
        let begin = Instant::now();
        self.sealed.lock().expect("one thread").clear();
        let sink = Box::new(Sink(self.sealed.clone()));
        let mut writer = AesGcmFileWrite::new(sink, self.cipher()?, self.aad_prefix.clone());
        for start in (0..self.plaintext.len()).step_by(PIECE) {
            let end = (start + PIECE).min(self.plaintext.len());
            writer.write(self.plaintext.slice(start..end)).await?;
        }
        writer.close().await?;
        Ok(begin.elapsed().as_nanos())
    }

    async fn open(&mut self) -> Result<u128, Failure> {
        // Taken out and put back: the source wants to own its bytes and must not copy them.
        let source = Bytes::from(std::mem::take(&mut *self.sealed.lock().expect("one thread")));
        let length = source.len() as u64;
        let begin = Instant::now();
        let reader = AesGcmFileRead::new(
            Box::new(Source(source.clone())),
            self.cipher()?,
            self.aad_prefix.clone().into(),
            length,
        )?;
        self.opened.clear();
        let size = reader.plaintext_length();
        for start in (0..size).step_by(PIECE) {
            let end = (start + PIECE as u64).min(size);
            self.opened.extend_from_slice(&reader.read(start..end).await?);
        }
        let elapsed = begin.elapsed().as_nanos();
        drop(reader);
        *self.sealed.lock().expect("one thread") = Vec::from(source);
        Ok(elapsed)
    }

    async fn obey(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["key", key, aad_prefix] => {
                self.key = hex::decode(key)?;
                self.aad_prefix = hex::decode(aad_prefix)?;
                Ok("ok".into())
            }
            ["load", path] => {
                self.plaintext = Bytes::from(std::fs::read(path)?);
                Ok("ok".into())
            }
            ["seal"] => Ok(self.seal().await?.to_string()),
            ["open"] => Ok(self.open().await?.to_string()),
            ["check"] if self.opened[..] == self.plaintext[..] => Ok("ok".into()),
            ["check"] => Err("the plaintext did not come back".into()),
            ["dump", path] => {
                std::fs::write(path, &*self.sealed.lock().expect("one thread"))?;
                Ok("ok".into())
            }
            ["take", path] => {
                *self.sealed.lock().expect("one thread") = std::fs::read(path)?;
                Ok("ok".into())
            }
            _ => Err(format!("unknown command: {line}").into()),
        }
    }
}

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut state = State::default();
    for line in io::stdin().lock().lines() {
        let answer = match runtime.block_on(state.obey(&line?)) {
            Ok(answer) => answer,
            Err(failure) => format!("error {failure}"),
        };
        println!("{answer}");
        io::stdout().flush()?;
    }
    Ok(())
}
