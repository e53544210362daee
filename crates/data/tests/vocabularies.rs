//! Vocabularies of GGUF files, against the libraries they come from: `vocabularies.py`.
#![cfg(feature = "tokenizers")]

use isograd_core::{Kind, Result};
use isograd_data::{GgmlVocabulary, Pretrained, TextStream, Tokenizer};
use serde_json::Value;

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_string()).collect()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().into_iter().flatten().map(|id| id.as_i64().unwrap()).collect()
}

fn vocabulary(value: &Value) -> GgmlVocabulary {
    GgmlVocabulary {
        model: value["model"].as_str().unwrap().into(),
        pre: value["pre"].as_str().unwrap_or_default().into(),
        tokens: texts(&value["tokens"]),
        kinds: ids(&value["kinds"]),
        scores: value["scores"].as_array().into_iter().flatten().map(|score| score.as_f64().unwrap()).collect(),
        merges: texts(&value["merges"]),
        bos: value["bos"].as_u64().map(|bos| bos as usize),
        ..GgmlVocabulary::default()
    }
}

fn cases() -> (Vec<String>, Vec<Value>) {
    let file: Value = serde_json::from_str(include_str!("vocabularies.json")).unwrap();
    (texts(&file["texts"]), file["cases"].as_array().unwrap().clone())
}

#[test]
fn texts_have_the_tokens_of_their_libraries() -> Result<()> {
    let (texts, cases) = cases();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let vocabulary = vocabulary(&case["vocabulary"]);
        let tokenizer = Pretrained::from_ggml(&vocabulary)?;
        for (text, expected) in texts.iter().zip(case["expected"].as_array().unwrap()) {
            let (found, name) = (tokenizer.encode(text)?, format!("{} {} {text:?}", vocabulary.model, vocabulary.pre));
            assert_eq!(found, ids(expected), "{name}");
            assert_eq!(tokenizer.decode(&found)?, *text, "{name}");
            let mut stream = TextStream::new(&tokenizer);
            let parts = found.iter().map(|&token| stream.push(token)).collect::<Result<Vec<String>>>()?;
            assert_eq!(parts.concat() + &stream.finish()?, *text, "{name}");
        }
    }
    Ok(())
}

#[test]
fn texts_begin_with_their_first_token_where_the_file_or_the_kind_says_so() -> Result<()> {
    let (_, cases) = cases();
    for (case, begins) in cases.iter().zip([true, false, false, true]) {
        let vocabulary = GgmlVocabulary { bos: Some(1), ..vocabulary(&case["vocabulary"]) };
        let of = |begins| Pretrained::from_ggml(&GgmlVocabulary { begins, ..vocabulary.clone() });
        for (said, expected) in [(None, begins), (Some(true), true), (Some(false), false)] {
            let tokenizer = of(said)?;
            let plain = tokenizer.encode("sea")?;
            let first = if expected { vec![1] } else { vec![] };
            assert_eq!(tokenizer.encode_special("sea")?, [first, plain].concat(), "{} {said:?}", vocabulary.pre);
        }
    }
    // Control tokens are found in a text of pieces too, and no blank is put before it if the file says so.
    let pieces = vocabulary(&cases[3]["vocabulary"]);
    let tokenizer = Pretrained::from_ggml(&GgmlVocabulary { has_blank: Some(false), ..pieces.clone() })?;
    let tokens = tokenizer.encode("</s> sea")?;
    assert_eq!((tokens[0], tokenizer.decode(&tokens)?.as_str()), (2, "</s> sea"));
    assert_eq!(pieces.tokens[tokens[1] as usize], "▁s");
    // A word that follows others keeps its blank.
    let tokenizer = Pretrained::from_ggml(&pieces)?;
    let [before, after] = [tokenizer.encode("the")?, tokenizer.encode("sea")?];
    assert_eq!(TextStream::after(&tokenizer, &before).push(after[0])?, " s");
    assert_eq!(TextStream::new(&tokenizer).push(after[0])?, "s");
    Ok(())
}

#[test]
fn vocabularies_that_are_refused() {
    let (_, cases) = cases();
    let (pairs, pieces) = (vocabulary(&cases[0]["vocabulary"]), vocabulary(&cases[3]["vocabulary"]));
    let refused = |vocabulary: GgmlVocabulary, kind: Kind, part: &str| {
        let error = Pretrained::from_ggml(&vocabulary).unwrap_err();
        assert!(error.kind() == kind && error.message().contains(part), "{error}");
    };
    let named = |model: &str| GgmlVocabulary { model: model.into(), ..pairs.clone() };
    for model in ["bert", "t5", "rwkv", ""] {
        refused(named(model), Kind::Unsupported, &format!("the vocabulary is {model:?}, expected gpt2 or llama"));
    }
    refused(GgmlVocabulary { pre: "bloom".into(), ..pairs.clone() }, Kind::Unsupported, "\"bloom\", expected gpt-2, ");
    refused(GgmlVocabulary { scores: Vec::new(), ..pieces.clone() }, Kind::Format, "scores are missing");
    refused(GgmlVocabulary { kinds: vec![1], ..pieces.clone() }, Kind::Format, "token_type has 1 elements, expected ");
    refused(GgmlVocabulary { bos: Some(9999), ..pieces }, Kind::Format, "bos_token_id is 9999");
    refused(GgmlVocabulary { merges: vec!["ab".into()], ..pairs }, Kind::Format, "a merge is \"ab\"");
}
