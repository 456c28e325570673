//! fast-floe's public `Encryptor` and `Decryptor` over kept memory, driven by lines on stdin.
//!
//! The protocol is that of `bench/peers/process.py`. The provider is AWS-LC.

use std::io::{self, BufRead, Write};
use std::time::Instant;

use fast_floe::online::{Decryptor, Encryptor, FinalEncryptError};
use fast_floe::{Header, Key, Parameters};

type Failure = Box<dyn std::error::Error>;

/// A segment is as long as a block of AGS1's, its 32 bytes of overhead included.
const PARAMETERS: Parameters = Parameters::SEGMENT_1_MIB;

struct State {
    key: Key,
    aad: Vec<u8>,
    plaintext: Vec<u8>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl State {
    fn load(&mut self, plaintext: Vec<u8>) -> Result<(), Failure> {
        let layout = PARAMETERS.plaintext_layout(plaintext.len() as u64)?;
        self.sealed = vec![1; usize::try_from(layout.ciphertext_length())?];
        self.opened = vec![1; plaintext.len()];
        self.plaintext = plaintext;
        Ok(())
    }

    fn seal(&mut self) -> Result<u128, Failure> {
        let begin = Instant::now();
        let mut encryptor = Encryptor::new(&self.key, &self.aad, PARAMETERS)?;
        let (header, mut out) = self.sealed.split_at_mut(Header::LEN);
        header.copy_from_slice(encryptor.header().as_bytes());
        let mut rest = self.plaintext.as_slice();
        let size = PARAMETERS.plaintext_segment_length();
        while rest.len() > size {
            let (segment, after) = rest.split_at(size);
            let end = encryptor.encrypt_non_final_segment_into(segment, out)?;
            (rest, out) = (after, &mut out[end..]);
        }
        encryptor
            .encrypt_final_segment_into(rest, out)
            .map_err(FinalEncryptError::into_error)?;
        Ok(begin.elapsed().as_nanos())
    }

    fn open(&mut self) -> Result<u128, Failure> {
        let begin = Instant::now();
        let (header, body) = self.sealed.split_at(Header::LEN);
        let mut decryptor = Decryptor::new(&self.key, &self.aad, &Header::try_from(header)?)?;
        let mut out = self.opened.as_mut_slice();
        for segment in body.chunks(PARAMETERS.ciphertext_segment_length()) {
            let end = decryptor.decrypt_segment_into(segment, out)?;
            out = &mut out[end..];
        }
        decryptor.finish()?;
        Ok(begin.elapsed().as_nanos())
    }

    fn obey(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["key", key, aad] => {
                let key: [u8; Key::LEN] = hex::decode(key)?
                    .try_into()
                    .map_err(|_| "FLOE has keys of 32 bytes only")?;
                self.key = Key::from_bytes(key);
                self.aad = hex::decode(aad)?;
            }
            ["load", path] => self.load(std::fs::read(path)?)?,
            ["seal"] => return Ok(self.seal()?.to_string()),
            ["open"] => return Ok(self.open()?.to_string()),
            ["check"] if self.opened == self.plaintext => self.opened.fill(0),
            ["check"] => return Err("the plaintext did not come back".into()),
            _ => return Err(format!("unknown command: {line}").into()),
        }
        Ok("ok".into())
    }
}

fn main() -> Result<(), Failure> {
    let mut state = State {
        key: Key::generate()?,
        aad: vec![],
        plaintext: vec![],
        sealed: vec![],
        opened: vec![],
    };
    for line in io::stdin().lock().lines() {
        let answer = match state.obey(&line?) {
            Ok(answer) => answer,
            Err(failure) => format!("error {failure}"),
        };
        println!("{answer}");
        io::stdout().flush()?;
    }
    Ok(())
}
