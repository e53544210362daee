//! Conversations as the texts that language models were trained on: templates of Jinja, as Hugging Face's tokenizers have them.

use isograd_core::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const OP: &str = "chat_template";
const NAME: &str = "chat";
/// The steps after which a template is given up: those of files may do anything.
const STEPS: u64 = 50_000_000;

/// A part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Whose words these are: mostly `system`, `user` or `assistant`.
    pub role: String,
    /// The words.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// The template of a model's conversations. Templates see what Hugging Face's `transformers` shows them, without tools and documents.
///
/// ```
/// use isograd_data::chat::{ChatTemplate, Message};
///
/// # fn main() -> isograd_core::Result<()> {
/// let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}\n{% endfor %}\
///     {% if add_generation_prompt %}<|assistant|>{% endif %}";
/// let template = ChatTemplate::new(source)?.special("eos_token", "<|end|>");
/// let text = template.render(&[Message::new("user", " Hello ")], true)?;
/// assert_eq!(text, "<|user|>Hello<|end|>\n<|assistant|>");
/// # Ok(())
/// # }
/// ```
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Texts that the template sees by name.
    special: BTreeMap<String, String>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("special", &self.special).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template of a source. Errors: `Format` for one that is not Jinja.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(STEPS));
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, source.to_string()).map_err(failed)?;
        Ok(ChatTemplate { environment, special: BTreeMap::new() })
    }

    /// The template with a text that it sees by name, such as `bos_token`.
    #[must_use]
    pub fn special(mut self, name: &str, text: &str) -> ChatTemplate {
        self.special.insert(name.to_string(), text.to_string());
        self
    }

    /// The template of a folder: that of `chat_template.jinja`, or else of `tokenizer_config.json`, which has the special tokens. None if the folder has
    /// none. Errors: `Io`; `Format` for damaged files.
    pub fn of_folder(folder: impl AsRef<Path>) -> Result<Option<ChatTemplate>> {
        let folder = folder.as_ref();
        let read = |name: &str| {
            let path = folder.join(name);
            path.is_file().then(|| Ok((isograd_files::read(&path)?, path.display().to_string()))).transpose()
        };
        let config: Json = match read("tokenizer_config.json")? {
            Some((bytes, path)) => {
                serde_json::from_slice(&bytes).map_err(|e| Error::format(path, format!("not JSON: {e}")))?
            }
            None => Json::Null,
        };
        let source = match read("chat_template.jinja")? {
            Some((bytes, path)) => {
                Some(String::from_utf8(bytes.to_vec()).map_err(|_| Error::format(path, "it is not UTF-8"))?)
            }
            None => source_of(&config["chat_template"]),
        };
        let Some(source) = source else { return Ok(None) };
        let mut template = ChatTemplate::new(&source)?;
        for (name, value) in config.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token")) {
            if let Some(text) = value.as_str().or(value["content"].as_str()) {
                template = template.special(name, text);
            }
        }
        Ok(Some(template))
    }

    /// The text of a conversation; with `generates`, up to where the answer of the model begins. Errors: `Value` with the words of a template that refuses
    /// the conversation, such as one whose roles do not alternate.
    pub fn render(&self, messages: &[Message], generates: bool) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let messages: Vec<Value> = messages
            .iter()
            .map(|Message { role, content }| context! { role => role.as_str(), content => content.as_str() })
            .collect();
        let all = context! { messages, add_generation_prompt => generates, tools => (), documents => (), ..Value::from(self.special.clone()) };
        template.render(all).map_err(|e| match e.kind() {
            ErrorKind::InvalidOperation => Error::value(OP, e.detail().unwrap_or("the template failed").to_string()),
            _ => Error::value(OP, format!("{e:#}")),
        })
    }
}

/// The source of `chat_template`: a text, or the first or the default one of several.
fn source_of(value: &Json) -> Option<String> {
    let several: Vec<&Json> = value.as_array().into_iter().flatten().collect();
    let default = several.iter().find(|each| each["name"] == "default").or(several.first());
    let source = value.as_str().or_else(|| default?["template"].as_str())?;
    (!source.is_empty()).then(|| source.to_string())
}

fn failed(error: minijinja::Error) -> Error {
    Error::format(OP, format!("the template is not one of Jinja: {error}"))
}

fn raise_exception(message: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python's `json.dumps` writes it: with blanks behind commas and colons, or with lines that are indented.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if value.kind() == ValueKind::Undefined {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "an undefined value has no JSON"));
    }
    let value = serde_json::to_value(&value).map_err(|e| raise(&e))?;
    let mut bytes = Vec::new();
    let blanks = " ".repeat(indent.unwrap_or(0).min(16));
    let written = match indent {
        Some(_) => write_json(&value, &mut bytes, PrettyFormatter::with_indent(blanks.as_bytes())),
        None => write_json(&value, &mut bytes, Spaced),
    };
    written.map_err(|e| raise(&e))?;
    String::from_utf8(bytes).map_err(|e| raise(&e))
}

fn write_json(value: &Json, bytes: &mut Vec<u8>, formatter: impl Formatter) -> serde_json::Result<()> {
    serde::Serialize::serialize(value, &mut Serializer::with_formatter(bytes, formatter))
}

fn raise(error: &dyn std::fmt::Display) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string())
}

/// A line with blanks behind commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The date and time of now, UTC, in a format of C's `strftime`.
fn strftime_now(format: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, now)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (mut found, mut rest) = (String::new(), format.chars());
    while let Some(c) = rest.next() {
        if c != '%' {
            found.push(c);
            continue;
        }
        let (name, weekday) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
        found += &match rest.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => name.to_string(),
            Some('b') => name[..3].to_string(),
            Some('A') => weekday.to_string(),
            Some('a') => weekday[..3].to_string(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('%') | None => "%".to_string(),
            Some(other) => format!("%{other}"),
        };
    }
    found
}

/// The year, month and day of so many days after 1970-01-01.
fn date(days: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut rest) = (1970, days);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        (year, rest) = (year + 1, rest - length);
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, length) in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
        if rest < length {
            return (year, month + 1, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;

    fn rendered(source: &str) -> Result<String> {
        let messages = [Message::new("system", "Be <kind>."), Message::new("user", " Hi \"you\" ")];
        ChatTemplate::new(source)?.special("bos_token", "<s>").render(&messages, true)
    }

    #[test]
    fn templates_see_what_transformers_shows_them() {
        for (source, expected) in [
            ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>Be <kind>."),
            (
                "{%- for m in messages if m.role != 'system' %}\n    {{- m['content'].strip().upper() }}\n{%- endfor %}\n",
                "HI \"YOU\"",
            ),
            // Lines of blocks leave nothing.
            ("a\n  {% if add_generation_prompt %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
            ("{{ messages[1] | tojson }}", "{\"content\": \" Hi \\\"you\\\" \", \"role\": \"user\"}"),
            ("{{ [1, {'a': '<é>'}] | tojson }}", "[1, {\"a\": \"<é>\"}]"),
            ("{{ {'a': 1} | tojson(indent=2) }}", "{\n  \"a\": 1\n}"),
            ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}{% endfor %}", "2"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            (
                "{{ tools is none }} {{ tools is defined and tools }} {{ enable_thinking is defined }}",
                "True None False",
            ),
            ("{{ messages[::-1][0].role }} {{ 'a<b'.split('<')[-1] }} {{ messages[0].get('name', '-') }}", "user b -"),
        ] {
            assert_eq!(rendered(source).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn templates_that_refuse_or_never_end() {
        let error = rendered("{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Value, "roles must alternate"));
        let error =
            rendered("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}").unwrap_err();
        assert!(error.message().contains("fuel"), "{error}");
        let error = ChatTemplate::new("{% for %}").unwrap_err();
        assert!(error.kind() == Kind::Format && error.message().contains("not one of Jinja"), "{error}");
    }

    #[test]
    fn a_folder_has_its_template() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let found = || ChatTemplate::of_folder(folder.path()).unwrap().map(|t| t.render(&[], false).unwrap());
        assert_eq!(found(), None);
        write("tokenizer_config.json", r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null}"#);
        assert_eq!(found(), None);
        write("tokenizer_config.json", r#"{"bos_token": {"content": "<s>"}, "chat_template": "a{{ bos_token }}"}"#);
        assert_eq!(found().as_deref(), Some("a<s>"));
        let several =
            r#"{"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        write("tokenizer_config.json", several);
        assert_eq!(found().as_deref(), Some("d"));
        write("chat_template.jinja", "jinja{{ bos_token }}");
        assert_eq!(found().as_deref(), Some("jinja"));
        write("tokenizer_config.json", "{");
        assert_eq!(ChatTemplate::of_folder(folder.path()).unwrap_err().kind(), Kind::Format);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let format = "%d %b %Y %A %H:%M:%S %j %%";
        assert_eq!(strftime(format, 0), "01 Jan 1970 Thursday 00:00:00 %j %");
        // date -u -d @1709251199
        assert_eq!(strftime("%Y-%m-%d %B %y %a %H:%M:%S", 1_709_251_199), "2024-02-29 February 24 Thu 23:59:59");
        assert_eq!(strftime("%Y-%m-%d", 4_107_542_400), "2100-03-01");
    }
}
