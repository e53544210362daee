//! The bodies of requests and answers, as OpenAI's clients have them.

use super::engine::Failure;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use isograd::data::chat::Message;
use isograd::models::LogitsOptions;
use isograd::ops::Sampling;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// An error, as OpenAI's clients read it.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// A request that cannot be answered.
    pub fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// One whose field is wrong.
    fn field(param: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param), ..ApiError::bad(message) }
    }

    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    pub fn body(&self) -> Value {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        let kind = if self.status == StatusCode::TOO_MANY_REQUESTS { "rate_limit_error" } else { kind };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        match failure {
            Failure::Late => ApiError::new(StatusCode::GATEWAY_TIMEOUT, "the request took longer than --timeout"),
            Failure::Stopping => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops"),
            Failure::Model(message) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        answer(self.status, &self.body())
    }
}

/// An answer of JSON.
pub fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from(body.to_string())).into_response()
}

/// Fields that change what a client gets, and that this server does not have; with the values that change nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
    ("logprobs", &["false"]),
    ("top_logprobs", &["0"]),
    ("logit_bias", &["{}"]),
    ("tools", &["[]"]),
    ("functions", &["[]"]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("modalities", &["[\"text\"]"]),
];

/// The fields of a request.
pub struct Fields(pub Value);

impl Fields {
    /// Errors: 400 for a body that is no JSON object.
    pub fn read(body: &[u8]) -> Result<Fields, ApiError> {
        let value: Value =
            serde_json::from_slice(body).map_err(|e| ApiError::bad(format!("the body is not JSON: {e}")))?;
        if !value.is_object() {
            return Err(ApiError::bad("the body is not an object of JSON"));
        }
        Ok(Fields(value))
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Errors: 400 for a field that this server does not have.
    pub fn check_supported(&self) -> Result<(), ApiError> {
        for &(name, harmless) in UNSUPPORTED {
            if let Some(value) = self.get(name).filter(|value| !harmless.contains(&value.to_string().as_str())) {
                return Err(ApiError::field(name, format!("{name} is {value}, which this server does not support")));
            }
        }
        Ok(())
    }

    /// Errors: 404 for another model than the one there is.
    pub fn check_model(&self, name: &str) -> Result<(), ApiError> {
        match self.get("model") {
            None => Ok(()),
            Some(value) if value == name => Ok(()),
            Some(value) => {
                let message = format!("there is no model {value}, only {name:?}");
                Err(ApiError { param: Some("model"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
                    .code("model_not_found"))
            }
        }
    }

    pub fn flag(&self, name: &'static str) -> Result<bool, ApiError> {
        let Some(value) = self.get(name) else { return Ok(false) };
        value.as_bool().ok_or_else(|| ApiError::field(name, format!("{name} is {value}, expected true or false")))
    }

    fn count(&self, name: &'static str) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|n| usize::try_from(n).ok());
        count
            .map(Some)
            .ok_or_else(|| ApiError::field(name, format!("{name} is {value}, expected a whole number from 0 on")))
    }

    /// A number within bounds.
    fn number(&self, name: &'static str, other: f64, [least, most]: [f64; 2]) -> Result<f64, ApiError> {
        let Some(value) = self.get(name) else { return Ok(other) };
        let number = value.as_f64().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            ApiError::field(name, format!("{name} is {value}, expected a number from {least} to {most}"))
        })
    }

    /// The most tokens of an answer.
    pub fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        for name in ["max_completion_tokens", "max_tokens"] {
            match self.count(name)? {
                None => {}
                Some(0) => return Err(ApiError::field(name, format!("{name} is 0, expected 1 or more"))),
                Some(count) => return Ok(Some(count)),
            }
        }
        Ok(None)
    }

    pub fn sampling(&self) -> Result<Sampling, ApiError> {
        Ok(Sampling {
            temperature: self.number("temperature", 1.0, [0.0, 2.0])?,
            top_k: self.count("top_k")?.unwrap_or(0),
            top_p: self.number("top_p", 1.0, [1e-9, 1.0])?,
            num_samples: 1,
        })
    }

    pub fn logits(&self) -> Result<LogitsOptions, ApiError> {
        Ok(LogitsOptions {
            repetition_penalty: self.number("repetition_penalty", 1.0, [1e-3, 1e3])?,
            frequency_penalty: self.number("frequency_penalty", 0.0, [-2.0, 2.0])?,
            presence_penalty: self.number("presence_penalty", 0.0, [-2.0, 2.0])?,
            min_p: self.number("min_p", 0.0, [0.0, 1.0])?,
        })
    }

    /// The seed, if there is one. Negative ones are seeds too.
    pub fn seed(&self) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get("seed") else { return Ok(None) };
        let seed = value.as_u64().or(value.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| ApiError::field("seed", format!("seed is {value}, expected a whole number")))
    }

    /// One text or several that end the answer.
    pub fn stops(&self) -> Result<Vec<String>, ApiError> {
        let Some(value) = self.get("stop") else { return Ok(Vec::new()) };
        let wrong = || ApiError::field("stop", format!("stop is {value}, expected a text, or up to 16 texts"));
        if let Some(text) = value.as_str() {
            return Ok(vec![text.to_string()]);
        }
        let all = value.as_array().filter(|all| all.len() <= 16).ok_or_else(wrong)?;
        all.iter().map(|text| text.as_str().map(str::to_string).ok_or_else(wrong)).collect()
    }

    /// Whether a stream tells at its end how many tokens there were.
    pub fn includes_usage(&self) -> bool {
        self.get("stream_options").is_some_and(|options| options["include_usage"] == true)
    }

    /// Texts or lists of tokens: one, or a list of them.
    pub fn inputs(&self, name: &'static str) -> Result<Vec<Input>, ApiError> {
        let value = self.get(name).ok_or_else(|| ApiError::field(name, format!("{name} is missing")))?;
        let wrong = || ApiError::field(name, format!("{name} is neither a text nor tokens, nor a list of one of them"));
        if let Some(input) = Input::read(value) {
            return Ok(vec![input]);
        }
        let all = value.as_array().ok_or_else(wrong)?;
        all.iter().map(|each| Input::read(each).ok_or_else(wrong)).collect()
    }

    /// The messages of a conversation.
    pub fn messages(&self) -> Result<Vec<Message>, ApiError> {
        let wrong = |why: &str| ApiError::field("messages", format!("messages: {why}"));
        let all = self.get("messages").and_then(Value::as_array).filter(|all| !all.is_empty());
        let all = all.ok_or_else(|| wrong("expected a list of one message or more"))?;
        let message = |value: &Value| {
            let role = value["role"].as_str().ok_or_else(|| wrong("a message has no role"))?;
            let parts = value["content"].as_array().into_iter().flatten();
            let text = |part: &Value| match (&part["type"], part["text"].as_str()) {
                (kind, Some(text)) if kind == "text" => Ok(text.to_string()),
                _ => Err(wrong("a part of a content is no text; this server takes nothing else")),
            };
            match &value["content"] {
                Value::String(content) => Ok(Message::new(role, content)),
                Value::Array(_) => Ok(Message::new(role, parts.map(text).collect::<Result<Vec<_>, _>>()?.concat())),
                _ => Err(wrong("a message has no content")),
            }
        };
        all.iter().map(message).collect()
    }

    /// Whether vectors are texts of base 64. Errors: 400 for another format.
    pub fn is_base64(&self) -> Result<bool, ApiError> {
        match self.get("encoding_format").map(|value| value.as_str()) {
            None | Some(Some("float")) => Ok(false),
            Some(Some("base64")) => Ok(true),
            _ => Err(ApiError::field("encoding_format", "encoding_format is neither float nor base64")),
        }
    }

    /// Errors: 400 for a number of elements that vectors do not have.
    pub fn check_dimensions(&self) -> Result<(), ApiError> {
        match self.get("dimensions") {
            None => Ok(()),
            Some(_) => Err(ApiError::field("dimensions", "dimensions: vectors have the width of the model")),
        }
    }
}

/// What a model reads.
pub enum Input {
    Text(String),
    Tokens(Vec<i64>),
}

impl Input {
    fn read(value: &Value) -> Option<Input> {
        if let Some(text) = value.as_str() {
            return Some(Input::Text(text.to_string()));
        }
        let tokens = value.as_array().filter(|all| !all.is_empty())?;
        tokens.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>().map(Input::Tokens)
    }
}

/// The two kinds of answers.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Completion,
    Chat,
}

/// What all parts of an answer have.
pub struct Head {
    pub kind: Kind,
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Head {
    /// The text of a part, or of all of it, and the reason of its end.
    fn choice(&self, text: Option<&str>, reason: Option<&str>, is_part: bool) -> Value {
        match (self.kind, is_part) {
            (Kind::Completion, _) => {
                json!({ "index": 0, "text": text.unwrap_or(""), "logprobs": null, "finish_reason": reason })
            }
            (Kind::Chat, false) => {
                let message = json!({ "role": "assistant", "content": text.unwrap_or("") });
                json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": reason })
            }
            (Kind::Chat, true) => {
                let delta = text.map_or(json!({}), |text| json!({ "content": text }));
                json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason })
            }
        }
    }

    fn body(&self, object: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }

    /// The whole answer.
    pub fn whole(&self, text: &str, reason: &str, usage: Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let mut body = self.body(object, json!([self.choice(Some(text), Some(reason), false)]));
        body["usage"] = usage;
        body
    }

    fn part_of(&self, choices: Value) -> Value {
        self.body(if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" }, choices)
    }

    /// The first part of an answer in a conversation.
    pub fn first(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null });
        (self.kind == Kind::Chat).then(|| self.part_of(json!([choice])))
    }

    /// A part with text.
    pub fn part(&self, text: &str) -> Value {
        self.part_of(json!([self.choice(Some(text), None, true)]))
    }

    /// The part that tells why the answer ends.
    pub fn last(&self, reason: &str) -> Value {
        self.part_of(json!([self.choice(None, Some(reason), true)]))
    }

    /// The part that tells how many tokens there were.
    pub fn usage(&self, usage: Value) -> Value {
        let mut body = self.part_of(json!([]));
        body["usage"] = usage;
        body
    }
}

/// Numbers of tokens.
pub fn usage(prompt: usize, tokens: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens })
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Floats in little-endian order as base 64. RFC 4648, section 4.
pub fn base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().enumerate().fold(0, |word, (i, &byte)| word | u32::from(byte) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
