//! The vocabularies of GGUF files. ggml, "GGUF", `docs/gguf.md`; llama.cpp, `src/llama-vocab.cpp`.

use super::Pretrained;
use isograd_core::{Error, Result};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The kinds of tokens, by their numbers in `tokenizer.ggml.token_type`.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// The sign of SentencePiece for a blank.
const BLANK: &str = "\u{2581}";

/// Words of GPT-2: `?` before a letter is a blank that belongs to the word.
const OF_GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Those of LLaMA 3, with up to three digits.
const OF_LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Those of Qwen 2, with one digit.
const OF_QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Those of Mistral's Tekken: a word ends before a capital letter.
const OF_TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Those of GPT-4o.
const OF_GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a text is cut into words before pairs are merged.
struct Words {
    /// The values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Each cuts the parts that the one before has left.
    patterns: &'static [&'static str],
    /// A word that is a token is not merged.
    ignores_merges: bool,
    /// A text begins with the first token of texts, unless the file says otherwise.
    begins: bool,
}

const WORDS: &[Words] = &[
    Words {
        names: &["gpt-2", "phi-2", "olmo", "mpt", "roberta-bpe", "jais", "trillion"],
        patterns: &[OF_GPT2],
        ignores_merges: false,
        begins: false,
    },
    Words {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[OF_LLAMA3],
        ignores_merges: true,
        begins: true,
    },
    Words {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        patterns: &[OF_LLAMA3],
        ignores_merges: false,
        begins: false,
    },
    Words {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"],
        patterns: &[OF_QWEN2],
        ignores_merges: false,
        begins: false,
    },
    Words { names: &["tekken"], patterns: &[OF_TEKKEN], ignores_merges: true, begins: true },
    Words { names: &["gpt-4o", "llama4"], patterns: &[OF_GPT4O], ignores_merges: false, begins: false },
    Words {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", OF_GPT2],
        ignores_merges: false,
        begins: false,
    },
    Words {
        names: &["default", ""],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", OF_GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignores_merges: false,
        begins: false,
    },
];

/// The vocabulary of a GGUF file: the values of its keys `tokenizer.ggml.*`. [`Pretrained::from_ggml`] makes a tokenizer of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgmlVocabulary {
    /// `model`: the kind of the vocabulary.
    pub model: String,
    /// `pre`: how a text is cut into words, for byte pairs.
    pub pre: String,
    /// `tokens`: the text of each token.
    pub tokens: Vec<String>,
    /// `token_type`: the kind of each token; empty if all are normal.
    pub kinds: Vec<i64>,
    /// `scores`: that of each token, for pieces.
    pub scores: Vec<f64>,
    /// `merges`: pairs, with a blank between them, in the order in which they are merged.
    pub merges: Vec<String>,
    /// `bos_token_id`: the first token of texts.
    pub bos: Option<usize>,
    /// `add_bos_token`: whether texts begin with it.
    pub begins: Option<bool>,
    /// `add_space_prefix`: whether a blank is put before a text, for pieces.
    pub has_blank: Option<bool>,
}

impl Pretrained {
    /// The tokenizer of a GGUF file's vocabulary: byte pairs (`gpt2`), or pieces with scores and bytes (`llama`). Errors: `Unsupported` for another
    /// kind, and for byte pairs with other words than those of LLaMA 3 and 4, Qwen, GPT-2, GPT-4o, Mistral, Phi and some others; `Format` for lists
    /// that do not fit each other.
    ///
    /// ```
    /// use isograd_data::{GgmlVocabulary, Pretrained, Tokenizer};
    ///
    /// # fn main() -> isograd_core::Result<()> {
    /// let vocabulary = GgmlVocabulary {
    ///     model: "gpt2".into(),
    ///     pre: "gpt-2".into(),
    ///     tokens: ["t", "o", "Ġ", "b", "e", "to", "Ġb", "Ġbe"].map(String::from).to_vec(),
    ///     merges: ["t o", "Ġ b", "Ġb e"].map(String::from).to_vec(),
    ///     ..GgmlVocabulary::default()
    /// };
    /// let tokenizer = Pretrained::from_ggml(&vocabulary)?;
    /// assert_eq!(tokenizer.encode("to be")?, [5, 7]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_ggml(vocabulary: &GgmlVocabulary) -> Result<Pretrained> {
        vocabulary.check()?;
        let file = match vocabulary.model.as_str() {
            "gpt2" => vocabulary.byte_pairs()?,
            "llama" => vocabulary.pieces()?,
            other => {
                let message = format!("the vocabulary is {other:?}, expected gpt2 or llama");
                return Err(Error::unsupported("tokenizer", message));
            }
        };
        Pretrained::from_bytes(file.to_string().as_bytes())
    }
}

impl GgmlVocabulary {
    /// Errors: `Format`.
    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        for (name, found) in [("token_type", self.kinds.len()), ("scores", self.scores.len())] {
            if found != 0 && found != count {
                return Err(invalid(format!("{name} has {found} elements, expected {count}, as many as tokens")));
            }
        }
        match self.bos.filter(|&bos| bos >= count) {
            Some(bos) => Err(invalid(format!("bos_token_id is {bos}, expected one of {count} tokens"))),
            None => Ok(()),
        }
    }

    fn kind(&self, token: usize) -> i64 {
        self.kinds.get(token).copied().unwrap_or(1)
    }

    /// The ids of tokens that texts are merged to.
    fn ids(&self) -> Value {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.clone(), id.into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Tokens that are found in a text as they are.
    fn added(&self) -> Vec<Value> {
        let is_added = |id: &usize| matches!(self.kind(*id), CONTROL | USER_DEFINED) && !self.tokens[*id].is_empty();
        let added = (0..self.tokens.len()).filter(is_added);
        added
            .map(|id| {
                json!({ "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": self.kind(id) == CONTROL })
            })
            .collect()
    }

    /// What is put around a text: its first token.
    fn around(&self, begins: bool) -> Value {
        let Some(bos) = self.bos.filter(|_| self.begins.unwrap_or(begins)) else { return Value::Null };
        let token = &self.tokens[bos];
        let [first, text] = [
            json!({ "SpecialToken": { "id": token, "type_id": 0 } }),
            json!({ "Sequence": { "id": "A", "type_id": 0 } }),
        ];
        let second = json!({ "Sequence": { "id": "B", "type_id": 0 } });
        json!({ "type": "TemplateProcessing", "single": [first, text], "pair": [first, text, second],
            "special_tokens": { token: { "id": token, "ids": [bos], "tokens": [token] } } })
    }

    /// The `tokenizer.json` of byte pairs.
    fn byte_pairs(&self) -> Result<Value> {
        let words = WORDS.iter().find(|words| words.names.contains(&self.pre.as_str())).ok_or_else(|| {
            let names: Vec<&str> =
                WORDS.iter().flat_map(|words| words.names).copied().filter(|n| !n.is_empty()).collect();
            Error::unsupported(
                "tokenizer",
                format!("the words are those of {:?}, expected {}", self.pre, names.join(", ")),
            )
        })?;
        let merges = self.merges.iter().map(|pair| match pair.split_once(' ') {
            Some((a, b)) => Ok(json!([a, b])),
            None => Err(invalid(format!("a merge is {pair:?}, expected two tokens with a blank between them"))),
        });
        let merges = merges.collect::<Result<Vec<Value>>>()?;
        let mut steps: Vec<Value> = words
            .patterns
            .iter()
            .map(|pattern| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false }))
            .collect();
        let bytes =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
        steps.push(bytes.clone());
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(), "normalizer": null,
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps }, "post_processor": self.around(words.begins),
            "decoder": bytes,
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": words.ignores_merges,
                "vocab": self.ids(), "merges": merges },
        }))
    }

    /// The `tokenizer.json` of SentencePiece's pieces. Of two neighbours those are merged whose piece has the highest score.
    fn pieces(&self) -> Result<Value> {
        if self.scores.is_empty() {
            return Err(invalid("scores are missing".to_string()));
        }
        let has_blank = self.has_blank.unwrap_or(true);
        let replaced =
            |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let mut normalizers = vec![replaced(" ", BLANK)];
        let mut decoders = vec![replaced(BLANK, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        if has_blank {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": BLANK }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let unknown = (0..self.tokens.len()).find(|&id| self.kind(id) == UNKNOWN);
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": { "type": "Sequence", "normalizers": normalizers }, "pre_tokenizer": null,
            "post_processor": self.around(true), "decoder": { "type": "Sequence", "decoders": decoders },
            "model": { "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| &self.tokens[id]),
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
                "ignore_merges": false, "vocab": self.ids(), "merges": self.pairs() },
        }))
    }

    /// All pairs of pieces that are a piece together, those with the highest score first.
    fn pairs(&self) -> Vec<[&str; 2]> {
        // Bytes, such as <0x0A>, and tokens that are found as they are do not come of pairs.
        let is_piece = |id: usize| matches!(self.kind(id), 1 | UNUSED);
        let ids: HashMap<&str, usize> = self
            .tokens
            .iter()
            .enumerate()
            .filter(|(id, _)| is_piece(*id))
            .map(|(id, token)| (token.as_str(), id))
            .collect();
        let mut found: Vec<(usize, [&str; 2])> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate().filter(|(id, _)| self.kind(*id) == 1) {
            let halves = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
            found.extend(halves.filter(|(a, b)| ids.contains_key(a) && ids.contains_key(b)).map(|(a, b)| (id, [a, b])));
        }
        // A sort that keeps the order of equal elements.
        found.sort_by(|(a, _), (b, _)| self.scores[*b].total_cmp(&self.scores[*a]));
        found.into_iter().map(|(_, pair)| pair).collect()
    }
}

fn invalid(message: String) -> Error {
    Error::format("tokenizer", message)
}
