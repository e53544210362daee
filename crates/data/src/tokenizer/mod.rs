//! Text as token ids, and back: bytes, the characters of a text, and, with the feature `tokenizers`, Hugging Face's `tokenizer.json`.
//!
//! ```
//! use isograd_data::{Characters, Tokenizer, Tokens};
//!
//! # fn main() -> isograd_core::Result<()> {
//! let text = "to be, or not to be";
//! let characters = Characters::of(text);
//! let tokens = Tokens::from_ids(&characters.encode(text)?)?;
//! assert_eq!(characters.decode(&tokens.get(7, 6)?)?, "or not");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokenizers")]
mod ggml;
#[cfg(feature = "tokenizers")]
mod pretrained;
mod stops;
mod stream;

#[cfg(feature = "tokenizers")]
pub use ggml::GgmlVocabulary;
#[cfg(feature = "tokenizers")]
pub use pretrained::Pretrained;
pub use stops::StopStrings;
pub use stream::TextStream;

use crate::file;
use isograd_core::{Error, Result, replace_file};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Turns text into token ids, and back.
pub trait Tokenizer: Send + Sync {
    /// The number of token ids, which are 0 to this, exclusive.
    fn vocabulary(&self) -> usize;

    /// The tokens of a text. Errors: `Value` for a part of the text that no token has.
    fn encode(&self, text: &str) -> Result<Vec<i64>>;

    /// The tokens of a text with the special tokens that a model expects around it, such as the first token of all texts. Errors: as
    /// [`encode`](Tokenizer::encode).
    fn encode_special(&self, text: &str) -> Result<Vec<i64>> {
        self.encode(text)
    }

    /// The text of tokens. Bytes that are not UTF-8 become U+FFFD. Errors: `Index` for a token outside of the vocabulary.
    fn decode(&self, tokens: &[i64]) -> Result<String>;

    /// The content of a file from which [`load`] makes the tokenizer again: JSON. Errors: those of a tokenizer that cannot be written.
    fn to_json(&self) -> Result<String>;

    /// Writes the file. Errors: `Io`, and those of [`to_json`](Tokenizer::to_json).
    fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, &[self.to_json()?.as_bytes(), b"\n"])
    }
}

/// The key of our own files, whose value is the kind of tokenizer.
const KEY: &str = "isograd";
const BYTES: &str = "bytes";
const CHARACTERS: &str = "characters";

/// Reads a file that [`Tokenizer::save`] wrote, or, with the feature `tokenizers`, a `tokenizer.json` of Hugging Face's. Errors: `Io`;
/// `Format` if it is neither, and for a `tokenizer.json` without the feature.
pub fn load(path: impl AsRef<Path>) -> Result<Box<dyn Tokenizer>> {
    let path = path.as_ref();
    let bytes = isograd_files::read(path)?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| file::invalid(path, format!("not JSON: {e}")))?;
    match value.get(KEY).and_then(Value::as_str) {
        Some(BYTES) => Ok(Box::new(Bytes)),
        Some(CHARACTERS) => match value[CHARACTERS].as_str() {
            Some(all) => Ok(Box::new(Characters::new(all).map_err(|e| file::invalid(path, e.message()))?)),
            None => Err(file::invalid(path, "the characters are missing")),
        },
        Some(other) => Err(file::invalid(path, format!("{other:?} is no tokenizer, expected {BYTES} or {CHARACTERS}"))),
        None => pretrained(path, &bytes),
    }
}

#[cfg(feature = "tokenizers")]
fn pretrained(path: &Path, bytes: &[u8]) -> Result<Box<dyn Tokenizer>> {
    Ok(Box::new(Pretrained::from_bytes(bytes).map_err(|e| file::invalid(path, e.message()))?))
}

#[cfg(not(feature = "tokenizers"))]
fn pretrained(path: &Path, _: &[u8]) -> Result<Box<dyn Tokenizer>> {
    let message = "not a tokenizer of isograd, and this program reads those of Hugging Face if it is built with the feature `tokenizers` of isograd: `cargo install --path crates/cli --features tokenizers` builds such a command";
    Err(file::invalid(path, message))
}

/// The error of a token that there is not.
fn no_token(token: i64, vocabulary: usize) -> Error {
    Error::index("decode", format!("there is no token {token}, expected one in 0..{vocabulary}"))
}

/// The bytes of a text in UTF-8: 256 tokens, for any text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes;

impl Tokenizer for Bytes {
    fn vocabulary(&self) -> usize {
        256
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        Ok(text.bytes().map(i64::from).collect())
    }

    fn decode(&self, tokens: &[i64]) -> Result<String> {
        let byte = |token: &i64| u8::try_from(*token).map_err(|_| no_token(*token, 256));
        let bytes = tokens.iter().map(byte).collect::<Result<Vec<u8>>>()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn to_json(&self) -> Result<String> {
        Ok(json!({ KEY: BYTES }).to_string())
    }
}

/// The characters of a text, one token each, in the order of their code points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Characters {
    /// In ascending order.
    all: Vec<char>,
}

impl Characters {
    /// The characters that occur in a text.
    pub fn of(text: &str) -> Characters {
        Characters { all: text.chars().collect::<BTreeSet<char>>().into_iter().collect() }
    }

    /// These characters. Errors: `Value` unless they are in ascending order, each once.
    pub fn new(characters: &str) -> Result<Characters> {
        let all: Vec<char> = characters.chars().collect();
        match all.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => {
                let message = format!("{:?} stands before {:?}, expected ascending characters", pair[0], pair[1]);
                Err(Error::value("characters", message))
            }
            None => Ok(Characters { all }),
        }
    }
}

impl Tokenizer for Characters {
    fn vocabulary(&self) -> usize {
        self.all.len()
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let token = |(place, c): (usize, char)| match self.all.binary_search(&c) {
            Ok(token) => Ok(token as i64),
            Err(_) => {
                let message = format!("character {place} is {c:?}, which is none of the {} known ones", self.all.len());
                Err(Error::value("encode", message))
            }
        };
        text.chars().enumerate().map(token).collect()
    }

    fn decode(&self, tokens: &[i64]) -> Result<String> {
        let character = |token: &i64| {
            let at = usize::try_from(*token).ok().and_then(|token| self.all.get(token));
            at.copied().ok_or_else(|| no_token(*token, self.all.len()))
        };
        tokens.iter().map(character).collect()
    }

    fn to_json(&self) -> Result<String> {
        Ok(json!({ KEY: CHARACTERS, CHARACTERS: self.all.iter().collect::<String>() }).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_comes_back(text: String) {
            let characters = Characters::of(&text);
            for tokenizer in [&Bytes as &dyn Tokenizer, &characters] {
                let tokens = tokenizer.encode(&text).unwrap();
                prop_assert!(tokens.iter().all(|t| (0..tokenizer.vocabulary() as i64).contains(t)));
                prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.clone());
            }
            prop_assert_eq!(Characters::new(&characters.all.iter().collect::<String>()).unwrap(), characters);
        }
    }

    #[test]
    fn characters_are_numbered_by_their_code_points() {
        let characters = Characters::of("héllo");
        assert_eq!((characters.vocabulary(), characters.encode("h").unwrap()), (4, vec![0]));
        assert_eq!(characters.encode("olé").unwrap(), [2, 1, 3]);
        let error = characters.encode("hallo").unwrap_err();
        assert_eq!(error.to_string(), "encode: Value: character 1 is 'a', which is none of the 4 known ones");
        for token in [-1, 4, i64::MAX] {
            let error = characters.decode(&[0, token]).unwrap_err();
            assert_eq!(error.to_string(), format!("decode: Index: there is no token {token}, expected one in 0..4"));
        }
        assert_eq!(Bytes.decode(&[256]).unwrap_err().kind(), Kind::Index);
        for disordered in ["ba", "aa"] {
            assert_eq!(Characters::new(disordered).unwrap_err().kind(), Kind::Value);
        }
    }

    #[test]
    fn a_saved_tokenizer_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let text = "\"q\" \\ \n\u{0} ⊕";
        let characters = Characters::of(text);
        for tokenizer in [&Bytes as &dyn Tokenizer, &characters] {
            tokenizer.save(&path).unwrap();
            let loaded = load(&path).unwrap();
            assert_eq!(loaded.encode(text).unwrap(), tokenizer.encode(text).unwrap());
            assert_eq!(loaded.vocabulary(), tokenizer.vocabulary());
        }
    }

    #[test]
    fn files_that_are_no_tokenizers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        for (content, expected) in [
            ("", "not JSON"),
            ("{\"isograd\":\"words\"}", "\"words\" is no tokenizer, expected bytes or characters"),
            ("{\"isograd\":\"characters\"}", "the characters are missing"),
            ("{\"isograd\":\"characters\",\"characters\":\"ba\"}", "'b' stands before 'a'"),
            ("{}", "tokenizer"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = load(&path).map(|_| ()).unwrap_err();
            assert!(error.kind() == Kind::Format && error.message().contains(expected), "{content}: {error}");
            assert!(error.to_string().contains("tokenizer.json"), "{error}");
        }
        assert_eq!(load(folder.path().join("none")).map(|_| ()).unwrap_err().kind(), Kind::Io);
    }
}
