//! The attributes of a node.

use super::graph::Graph;
use super::value::Value;
use crate::proto::{AttributeProto, attribute_type};
use isograd_core::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// An attribute.
#[derive(Debug)]
pub enum Attribute {
    Int(i64),
    Float(f64),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
    /// A tensor that the graph keeps.
    Constant(usize),
    /// A small tensor on the host.
    Numbers(Value),
    Graph(Arc<Graph>),
}

/// The attributes of a node, by name.
#[derive(Debug, Default)]
pub struct Attributes(pub HashMap<String, Attribute>);

/// The decimal number that a float of 32 bits stands for: 1e-5 of the float next to it.
pub fn decimal(v: f32) -> f64 {
    v.to_string().parse().unwrap_or(v.into())
}

impl Attribute {
    /// An attribute that is neither a tensor nor a graph; `None` for another one, and for a type that nodes do not have.
    pub fn plain(message: &AttributeProto) -> Option<Attribute> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(match message.r#type.unwrap_or_else(|| assumed(message)) {
            attribute_type::FLOAT => Attribute::Float(decimal(message.f())),
            attribute_type::INT => Attribute::Int(message.i()),
            attribute_type::STRING => Attribute::Text(text(message.s())),
            attribute_type::FLOATS => Attribute::Floats(message.floats.iter().map(|&v| decimal(v)).collect()),
            attribute_type::INTS => Attribute::Ints(message.ints.clone()),
            attribute_type::STRINGS => Attribute::Texts(message.strings.iter().map(|s| text(s)).collect()),
            _ => return None,
        })
    }
}

/// The type of an attribute of the first version of the format, which did not say it.
pub fn assumed(message: &AttributeProto) -> i32 {
    let found = [
        (message.f.is_some(), attribute_type::FLOAT),
        (message.i.is_some(), attribute_type::INT),
        (message.s.is_some(), attribute_type::STRING),
        (message.t.is_some(), attribute_type::TENSOR),
        (message.g.is_some(), attribute_type::GRAPH),
        (!message.floats.is_empty(), attribute_type::FLOATS),
        (!message.strings.is_empty(), attribute_type::STRINGS),
    ];
    found.iter().find(|(is_given, _)| *is_given).map_or(attribute_type::INTS, |(_, kind)| *kind)
}

/// The error of an attribute of another type than an operator has.
fn mistaken<T>(name: &str, expected: &str) -> Result<T> {
    Err(Error::attr("onnx", format!("the attribute {name} is no {expected}")))
}

impl Attributes {
    pub fn get(&self, name: &str) -> Option<&Attribute> {
        self.0.get(name)
    }

    pub fn int(&self, name: &str) -> Result<Option<i64>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Int(v)) => Ok(Some(*v)),
            Some(_) => mistaken(name, "integer"),
        }
    }

    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Float(v)) => Ok(Some(*v)),
            Some(_) => mistaken(name, "float"),
        }
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Text(v)) => Ok(Some(v)),
            Some(_) => mistaken(name, "text"),
        }
    }

    pub fn ints(&self, name: &str) -> Result<Option<&[i64]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(v)) => Ok(Some(v)),
            Some(_) => mistaken(name, "list of integers"),
        }
    }

    pub fn floats(&self, name: &str) -> Result<Option<&[f64]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Floats(v)) => Ok(Some(v)),
            // A list without elements has no type of its own in the first version of the format.
            Some(Attribute::Ints(v)) if v.is_empty() => Ok(Some(&[])),
            Some(_) => mistaken(name, "list of floats"),
        }
    }

    pub fn texts(&self, name: &str) -> Result<Option<&[String]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Attribute::Texts(v)) => Ok(Some(v)),
            Some(_) => mistaken(name, "list of texts"),
        }
    }

    pub fn graph(&self, name: &str) -> Result<&Arc<Graph>> {
        match self.get(name) {
            Some(Attribute::Graph(graph)) => Ok(graph),
            _ => mistaken(name, "graph"),
        }
    }
}
