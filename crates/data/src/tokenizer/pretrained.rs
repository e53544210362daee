//! Hugging Face's `tokenizer.json`.

use super::{Tokenizer, no_token};
use crate::file;
use isograd_core::{Error, Result};
use std::path::Path;

/// A tokenizer of Hugging Face's `tokenizer.json`, such as GPT-2's byte pairs.
pub struct Pretrained {
    tokenizer: tokenizers::Tokenizer,
    vocabulary: usize,
}

impl Pretrained {
    /// Reads the file. Errors: `Io`; `Format` if it is not such a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Pretrained> {
        let path = path.as_ref();
        Pretrained::from_bytes(&isograd_files::read(path)?).map_err(|e| file::invalid(path, e.message()))
    }

    /// The tokenizer of a file's content. Errors: `Format`.
    pub fn from_bytes(content: &[u8]) -> Result<Pretrained> {
        let failed = |e| Error::format("tokenizer", format!("not a tokenizer.json of Hugging Face's: {e}"));
        let tokenizer = file::guarded(|| tokenizers::Tokenizer::from_bytes(content)).map_err(failed)?;
        // Ids may have gaps.
        let vocabulary = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last as usize + 1);
        let most = isograd_files::most_ids(content.len());
        if vocabulary > most {
            let message = format!("a token has the id {}, expected less than {most} in this file", vocabulary - 1);
            return Err(Error::format("tokenizer", message));
        }
        Ok(Pretrained { tokenizer, vocabulary })
    }

    fn ids(&self, text: &str, has_special: bool) -> Result<Vec<i64>> {
        let failed = |e| Error::value("encode", format!("the tokenizer failed: {e}"));
        let encoding = self.tokenizer.encode_fast(text, has_special).map_err(failed)?;
        Ok(encoding.get_ids().iter().map(|&id| i64::from(id)).collect())
    }
}

impl std::fmt::Debug for Pretrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pretrained").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl Tokenizer for Pretrained {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        self.ids(text, false)
    }

    fn encode_special(&self, text: &str) -> Result<Vec<i64>> {
        self.ids(text, true)
    }

    fn decode(&self, tokens: &[i64]) -> Result<String> {
        // The library skips ids that it does not know.
        let id = |&token: &i64| match u32::try_from(token) {
            Ok(id) if (id as usize) < self.vocabulary => Ok(id),
            _ => Err(no_token(token, self.vocabulary)),
        };
        let ids = tokens.iter().map(id).collect::<Result<Vec<u32>>>()?;
        let failed = |e| Error::value("decode", format!("the tokenizer failed: {e}"));
        self.tokenizer.decode(&ids, false).map_err(failed)
    }

    fn to_json(&self) -> Result<String> {
        let failed = |e| Error::value("tokenizer", format!("it cannot be written: {e}"));
        file::guarded(|| self.tokenizer.to_string(false)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TextStream, load};
    use super::*;
    use isograd_core::Kind;

    /// Byte pairs as GPT-2 has them: all bytes, the pairs "to", " b", " be", and a special token.
    fn small() -> String {
        let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let others = (0..=255u8).filter(|b| !printable(b)).zip(0x100u32..);
        let mut symbols: Vec<(u8, char)> = (0..=255u8).filter(printable).map(|b| (b, char::from(b))).collect();
        symbols.extend(others.filter_map(|(b, code)| Some((b, char::from_u32(code)?))));
        let mut vocabulary: serde_json::Map<String, serde_json::Value> =
            symbols.iter().map(|(b, c)| (c.to_string(), (*b).into())).collect();
        for (symbol, id) in [("to", 256), ("Ġb", 257), ("Ġbe", 258)] {
            vocabulary.insert(symbol.into(), id.into());
        }
        let level = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let special = serde_json::json!({ "id": 259, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
        serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special], "normalizer": null,
            "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "vocab": vocabulary, "merges": ["t o", "Ġ b", "Ġb e"] },
        })
        .to_string()
    }

    #[test]
    fn byte_pairs_are_merged_and_come_back() {
        let tokenizer = Pretrained::from_bytes(small().as_bytes()).unwrap();
        let text = "to be to bé<|end|>";
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokens, [256, 258, i64::from(b' '), 256, 257, 0xc3, 0xa9, 259]);
        assert_eq!((tokenizer.decode(&tokens).unwrap().as_str(), tokenizer.vocabulary()), (text, 260));
        let mut stream = TextStream::new(&tokenizer);
        let parts: Vec<String> = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        assert_eq!(parts, ["to", " be", " ", "to", " b", "", "é", "<|end|>"]);
        assert_eq!(tokenizer.decode(&[260]).unwrap_err().kind(), Kind::Index);
    }

    #[test]
    fn an_id_that_is_far_above_the_others_is_refused() {
        let mut file: serde_json::Value = serde_json::from_str(&small()).unwrap();
        for (id, is_right) in [(60_000, true), (1_000_000_000, false)] {
            file["model"]["vocab"]["to"] = id.into();
            let found = Pretrained::from_bytes(file.to_string().as_bytes());
            assert_eq!(found.is_ok(), is_right, "{id}");
        }
    }

    #[test]
    fn a_file_is_loaded_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        Pretrained::from_bytes(small().as_bytes()).unwrap().save(&path).unwrap();
        assert_eq!(load(&path).unwrap().encode("to").unwrap(), [256]);
        assert_eq!(Pretrained::open(&path).unwrap().vocabulary(), 260);
        std::fs::write(&path, "{\"model\": 1}").unwrap();
        let error = Pretrained::open(&path).unwrap_err();
        assert!(error.message().contains("not a tokenizer.json of Hugging Face's"), "{error}");
    }
}
