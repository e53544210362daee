//! Messages of models.

use crate::proto::*;
use isograd_core::{Device, Element, Result, Tensor};
use isograd_cpu as _;
use isograd_onnx::OnnxModel;
use prost::Message;

pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

pub fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), &cpu()).unwrap()
}

pub fn matrix(values: &[f32], shape: [usize; 2]) -> Tensor {
    Tensor::from_slice(values, shape, &cpu()).unwrap()
}

fn attribute(name: &str, r#type: i32) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(r#type), ..Default::default() }
}

pub fn int(name: &str, v: i64) -> AttributeProto {
    AttributeProto { i: Some(v), ..attribute(name, attribute_type::INT) }
}

pub fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto { ints: v.to_vec(), ..attribute(name, attribute_type::INTS) }
}

pub fn float(name: &str, v: f32) -> AttributeProto {
    AttributeProto { f: Some(v), ..attribute(name, attribute_type::FLOAT) }
}

pub fn floats(name: &str, v: &[f32]) -> AttributeProto {
    AttributeProto { floats: v.to_vec(), ..attribute(name, attribute_type::FLOATS) }
}

pub fn texts(name: &str, v: &[&str]) -> AttributeProto {
    let strings = v.iter().map(|v| v.as_bytes().to_vec()).collect();
    AttributeProto { strings, ..attribute(name, attribute_type::STRINGS) }
}

pub fn text(name: &str, v: &str) -> AttributeProto {
    AttributeProto { s: Some(v.as_bytes().to_vec()), ..attribute(name, attribute_type::STRING) }
}

pub fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(graph)), ..attribute(name, attribute_type::GRAPH) }
}

pub fn constant(name: &str, tensor: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(Box::new(tensor)), ..attribute(name, attribute_type::TENSOR) }
}

/// A node; inputs and outputs are names apart by spaces, of which `_` is absent.
pub fn node(op: &str, inputs: &str, outputs: &str, attributes: &[AttributeProto]) -> NodeProto {
    let names = |all: &str| all.split(' ').filter(|n| !n.is_empty()).map(|n| n.replace('_', "")).collect();
    NodeProto {
        input: names(inputs),
        output: names(outputs),
        op_type: Some(op.into()),
        attribute: attributes.to_vec(),
        ..Default::default()
    }
}

pub fn of_domain(domain: &str, node: NodeProto) -> NodeProto {
    NodeProto { domain: Some(domain.into()), ..node }
}

fn number(dtype: isograd_core::DType) -> i32 {
    use isograd_core::DType::*;
    match dtype {
        F32 => 1,
        U8 => 2,
        I32 => 6,
        I64 => 7,
        Bool => 9,
        F16 => 10,
        F64 => 11,
        BF16 => 16,
    }
}

pub fn tensor<T: Element>(name: &str, values: &[T], dims: &[i64]) -> TensorProto {
    let mut bytes = Vec::new();
    T::extend_bytes(values, &mut bytes);
    TensorProto {
        dims: dims.to_vec(),
        data_type: Some(number(T::DTYPE)),
        name: Some(name.into()),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

/// A value of floats, of any shape.
pub fn port(name: &str, elem_type: i32) -> ValueInfoProto {
    let tensor = TensorTypeProto { elem_type: Some(elem_type), shape: None };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { tensor_type: Some(tensor), ..Default::default() }),
    }
}

/// A graph of floats.
pub fn graph(inputs: &str, outputs: &str, nodes: &[NodeProto], tensors: &[TensorProto]) -> GraphProto {
    let ports = |all: &str| all.split(' ').filter(|n| !n.is_empty()).map(|n| port(n, 1)).collect();
    GraphProto {
        node: nodes.to_vec(),
        initializer: tensors.to_vec(),
        input: ports(inputs),
        output: ports(outputs),
        ..Default::default()
    }
}

pub fn model(opset: i64, graph: GraphProto) -> ModelProto {
    let set = |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    ModelProto {
        ir_version: Some(8),
        graph: Some(graph),
        opset_import: vec![set("", opset), set("com.microsoft", 1), set("ai.onnx.ml", 1)],
        ..Default::default()
    }
}

pub fn encoded(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

pub fn loaded(model: &ModelProto) -> Result<OnnxModel> {
    OnnxModel::from_bytes(&model.encode_to_vec(), &cpu())
}

/// The first output of a model of floats, for these inputs.
pub fn run(opset: i64, graph: GraphProto, inputs: &[Tensor]) -> Result<Tensor> {
    Ok(loaded(&model(opset, graph))?.forward(inputs)?.remove(0))
}

/// The first output of one node, of inputs a, b, c and tensors.
pub fn run_node(opset: i64, node: NodeProto, tensors: &[TensorProto], inputs: &[Tensor]) -> Result<Tensor> {
    let names = ["a", "b", "c"][..inputs.len()].join(" ");
    let output = node.output[0].clone();
    run(opset, graph(&names, &output, &[node], tensors), inputs)
}
