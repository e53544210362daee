//! Rows of the pointwise table evaluated with nodes: the text of a row becomes a part of a graph.
//!
//! A row's numbers are items of an arena: operands, constants and nodes. Constants are folded. What nobody reads is left out when the
//! graph is finished.

use crate::export::graph::{self, Graph, data_type, int};
use crate::export::translation::{Found, absent};
use crate::proto::AttributeProto;
use isograd_core::pointwise::{Int, Integer, Pointwise, Real, Row, Value, Visitor};
use isograd_core::{DType, Scalar, bf16, f16};
use std::cell::RefCell;
use std::f64::consts::{FRAC_PI_2, LN_2, LN_10, PI};
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// A row and what it is applied to.
pub struct Applied {
    pub row: Pointwise,
    pub inputs: Vec<(graph::Value, DType)>,
    pub floats: Vec<f64>,
    pub ints: Vec<i64>,
    pub outputs: Vec<DType>,
}

/// A number of a row.
#[derive(Clone, Copy)]
pub enum Node {
    Constant(Scalar),
    /// An item of the dtype in which the row is computed.
    Item(usize),
    /// An item of bool, which counts as 1 or 0.
    Bool(usize),
}

/// The result of a comparison: a constant, or an item of bool.
#[derive(Clone, Copy)]
pub enum Mask {
    Known(bool),
    Item(usize),
}

enum Item {
    Operand(graph::Value),
    Constant(Scalar, DType),
    Node(&'static str, Vec<usize>, Option<Box<AttributeProto>>),
}

/// The items of a row, each after those that it reads, and bits of the operands on which each depends.
struct Arena {
    items: Vec<(Item, u32)>,
    /// The dtype in which the row is computed.
    dtype: DType,
}

thread_local! {
    static ARENA: RefCell<Arena> = const { RefCell::new(Arena { items: Vec::new(), dtype: DType::F32 }) };
}

/// The number of `UINT64` in `TensorProto.DataType`: only unsigned integers have shifts in ONNX.
const UINT64: i64 = 13;

/// A result of a row, and bits of the operands on which it depends.
pub type Output = (graph::Value, u32);

/// The results of a row. As everywhere, 16 bits are computed in f32, and integers in i64.
pub fn evaluate(graph: &mut Graph, applied: &Applied) -> Found<Vec<Output>> {
    let dtypes = || applied.inputs.iter().map(|(_, dtype)| *dtype).chain(applied.outputs.iter().copied());
    let wide = match dtypes().find(|dtype| dtype.is_float()) {
        Some(_) if dtypes().any(|dtype| dtype == DType::F64) => DType::F64,
        Some(_) => DType::F32,
        None => DType::I64,
    };
    // The result of one node is rounded once in any case: it needs no casts.
    let mut others = dtypes().filter(|&dtype| dtype != DType::Bool);
    let narrow = others.next().filter(|&first| first != wide && others.all(|dtype| dtype == first));
    let alone = narrow.map(|dtype| Recorded::new(applied, dtype)).transpose()?.filter(Recorded::is_one_node);
    alone.map_or_else(|| Recorded::new(applied, wide), Ok)?.write(graph)
}

struct Recorded {
    arena: Arena,
    outputs: Vec<usize>,
}

impl Recorded {
    fn new(applied: &Applied, dtype: DType) -> Found<Recorded> {
        ARENA.set(Arena { items: Vec::new(), dtype });
        let inputs: Vec<Node> = applied.inputs.iter().enumerate().map(|(i, &input)| operand(i, input, dtype)).collect();
        let is_float = dtype.is_float();
        let attributes: Vec<Node> = match is_float {
            true => applied.floats.iter().map(|&v| Node::Constant(v.into())).collect(),
            false => applied.ints.iter().map(|&v| Node::Constant(v.into())).collect(),
        };
        let expected = (applied.row.inputs(), applied.row.attributes());
        if (inputs.len(), attributes.len()) != expected {
            let (inputs, attributes) = (inputs.len(), attributes.len());
            return absent(format!("{inputs} operands and {attributes} attributes, expected {expected:?}"));
        }
        let row = Evaluate { inputs: &inputs, attributes: &attributes };
        let found = if is_float { applied.row.visit_real(row) } else { applied.row.visit_integer(row) };
        let Some(found) = found else { return absent(format!("it has no {dtype}")) };
        let outputs = found.into_iter().zip(&applied.outputs).map(|(node, &to)| output(node, to)).collect();
        let arena = ARENA.replace(Arena { items: Vec::new(), dtype });
        Ok(Recorded { arena, outputs })
    }

    /// True for a node, and logic of its result, whose constants the dtype has.
    fn is_one_node(&self) -> bool {
        let is_exact = |item: &Item| match item {
            Item::Constant(v, dtype) => holds(*dtype, *v),
            _ => true,
        };
        let is_rounding = |item: &Item| matches!(item, Item::Node(op, ..) if !["Not", "And", "Or"].contains(op));
        let items = || self.arena.items.iter().map(|(item, _)| item);
        items().all(is_exact) && items().filter(|item| is_rounding(item)).count() <= 1
    }

    fn write(self, graph: &mut Graph) -> Found<Vec<Output>> {
        let mut values: Vec<Output> = Vec::new();
        for (item, reads) in self.arena.items {
            let value = match item {
                Item::Operand(value) => value,
                Item::Constant(v, dtype) if dtype.is_float() => graph.scalar(v.as_f64(), dtype)?,
                Item::Constant(v, dtype) => graph.scalar(integer(v), dtype)?,
                Item::Node(op, inputs, attribute) => {
                    let inputs: Vec<graph::Value> = inputs.iter().map(|&i| values[i].0).collect();
                    graph.node(op, &inputs, attribute.as_deref().map_or(&[], std::slice::from_ref))
                }
            };
            values.push((value, reads));
        }
        Ok(self.outputs.iter().map(|&i| values[i]).collect())
    }
}

struct Evaluate<'a> {
    inputs: &'a [Node],
    attributes: &'a [Node],
}

impl Visitor<Node, Mask> for Evaluate<'_> {
    type Output = Vec<Node>;

    fn visit<R: Row<Node, Mask, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Vec<Node> {
        R::eval(std::array::from_fn(|i| self.inputs[i]), std::array::from_fn(|i| self.attributes[i])).to_vec()
    }
}

fn operand(i: usize, (value, from): (graph::Value, DType), to: DType) -> Node {
    let item = push(Item::Operand(value), 1 << i);
    match from {
        DType::Bool => Node::Bool(item),
        _ if from == to => Node::Item(item),
        _ => Node::Item(cast(item, to)),
    }
}

fn output(node: Node, to: DType) -> usize {
    match node {
        Node::Constant(v) => push(Item::Constant(v, to), 0),
        Node::Bool(i) if to == DType::Bool => i,
        Node::Bool(i) => cast(i, to),
        Node::Item(i) if to == dtype() => i,
        Node::Item(i) => cast(i, to),
    }
}

fn holds(dtype: DType, v: Scalar) -> bool {
    let (real, whole) = (v.as_f64(), integer(v));
    match dtype {
        DType::F16 => f16::from_f64(real).to_f64() == real,
        DType::BF16 => bf16::from_f64(real).to_f64() == real,
        DType::I32 => i32::try_from(whole).is_ok(),
        DType::U8 => u8::try_from(whole).is_ok(),
        _ => true,
    }
}

/// A constant of a row of integers.
fn integer(v: Scalar) -> i64 {
    match v {
        Scalar::Int(v) => v,
        Scalar::Float(v) => v as i64,
    }
}

fn dtype() -> DType {
    ARENA.with_borrow(|arena| arena.dtype)
}

fn push(item: Item, reads: u32) -> usize {
    ARENA.with_borrow_mut(|arena| {
        arena.items.push((item, reads));
        arena.items.len() - 1
    })
}

fn apply_with(op: &'static str, operands: &[usize], attribute: Option<AttributeProto>) -> usize {
    let reads = ARENA.with_borrow(|arena| operands.iter().fold(0, |reads, &i| reads | arena.items[i].1));
    push(Item::Node(op, operands.to_vec(), attribute.map(Box::new)), reads)
}

fn apply(op: &'static str, operands: &[usize]) -> usize {
    apply_with(op, operands, None)
}

fn cast_to(item: usize, to: i64) -> usize {
    apply_with("Cast", &[item], Some(int("to", to)))
}

fn cast(item: usize, to: DType) -> usize {
    cast_to(item, data_type(to).into())
}

/// The item of a number, in the dtype in which the row is computed.
fn item(x: Node) -> usize {
    match x {
        Node::Constant(v) => push(Item::Constant(v, dtype()), 0),
        Node::Item(i) => i,
        Node::Bool(i) => cast(i, dtype()),
    }
}

fn is_constant(x: Node, v: f64) -> bool {
    matches!(x, Node::Constant(known) if known.as_f64() == v)
}

fn unary(op: &'static str, x: Node, known: fn(f64) -> f64) -> Node {
    match x {
        Node::Constant(v) => Node::c(known(v.as_f64())),
        x => Node::Item(apply(op, &[item(x)])),
    }
}

fn binary(op: &'static str, a: Node, b: Node, reals: fn(f64, f64) -> f64, integers: fn(Int, Int) -> Int) -> Node {
    match (a, b) {
        (Node::Constant(Scalar::Float(a)), Node::Constant(Scalar::Float(b))) => Node::c(reals(a, b)),
        (Node::Constant(a), Node::Constant(b)) => Node::Constant(integers(Int(integer(a)), Int(integer(b))).0.into()),
        (a, b) => Node::Item(apply(op, &[item(a), item(b)])),
    }
}

fn compare(op: &'static str, a: Node, b: Node, known: fn(f64, f64) -> bool) -> Mask {
    match (a, b) {
        (Node::Constant(a), Node::Constant(b)) => Mask::Known(known(a.as_f64(), b.as_f64())),
        (a, b) => Mask::Item(apply(op, &[item(a), item(b)])),
    }
}

impl Add for Node {
    type Output = Node;
    fn add(self, other: Node) -> Node {
        match (self, other) {
            (x, zero) | (zero, x) if is_constant(zero, 0.0) => x,
            (a, b) => binary("Add", a, b, |a, b| a + b, |a, b| a + b),
        }
    }
}

impl Sub for Node {
    type Output = Node;
    fn sub(self, other: Node) -> Node {
        if is_constant(other, 0.0) { self } else { binary("Sub", self, other, |a, b| a - b, |a, b| a - b) }
    }
}

impl Mul for Node {
    type Output = Node;
    fn mul(self, other: Node) -> Node {
        match (self, other) {
            (x, one) | (one, x) if is_constant(one, 1.0) => x,
            (a, b) => binary("Mul", a, b, |a, b| a * b, |a, b| a * b),
        }
    }
}

impl Div for Node {
    type Output = Node;
    fn div(self, other: Node) -> Node {
        match (self, other) {
            (x, one) if is_constant(one, 1.0) => x,
            (one, x) if is_constant(one, 1.0) => unary("Reciprocal", x, f64::recip),
            // Integers have no such operator.
            (a, b) => binary("Div", a, b, |a, b| a / b, Integer::div_trunc),
        }
    }
}

impl Neg for Node {
    type Output = Node;
    fn neg(self) -> Node {
        match self {
            Node::Constant(Scalar::Int(v)) => Node::Constant(v.wrapping_neg().into()),
            x => unary("Neg", x, |v| -v),
        }
    }
}

impl BitAnd for Mask {
    type Output = Mask;
    fn bitand(self, other: Mask) -> Mask {
        match (self, other) {
            (mask, Mask::Known(true)) | (Mask::Known(true), mask) => mask,
            (_, Mask::Known(false)) | (Mask::Known(false), _) => Mask::Known(false),
            (Mask::Item(a), Mask::Item(b)) => Mask::Item(apply("And", &[a, b])),
        }
    }
}

impl BitOr for Mask {
    type Output = Mask;
    fn bitor(self, other: Mask) -> Mask {
        match (self, other) {
            (mask, Mask::Known(false)) | (Mask::Known(false), mask) => mask,
            (_, Mask::Known(true)) | (Mask::Known(true), _) => Mask::Known(true),
            (Mask::Item(a), Mask::Item(b)) => Mask::Item(apply("Or", &[a, b])),
        }
    }
}

impl Not for Mask {
    type Output = Mask;
    fn not(self) -> Mask {
        let opposite = |i: usize| {
            ARENA.with_borrow(|arena| match &arena.items[i].0 {
                Item::Node("Not", of, _) => Some(of[0]),
                _ => None,
            })
        };
        match self {
            Mask::Known(known) => Mask::Known(!known),
            Mask::Item(i) => Mask::Item(opposite(i).unwrap_or_else(|| apply("Not", &[i]))),
        }
    }
}

impl Value for Node {
    type Mask = Mask;

    fn c(v: f64) -> Node {
        Node::Constant(v.into())
    }
    fn lt(self, other: Node) -> Mask {
        // Nothing is beyond infinity.
        match is_constant(self, f64::INFINITY) || is_constant(other, f64::NEG_INFINITY) {
            true => Mask::Known(false),
            false => compare("Less", self, other, |a, b| a < b),
        }
    }
    fn le(self, other: Node) -> Mask {
        compare("LessOrEqual", self, other, |a, b| a <= b)
    }
    fn gt(self, other: Node) -> Mask {
        match is_constant(other, f64::INFINITY) || is_constant(self, f64::NEG_INFINITY) {
            true => Mask::Known(false),
            false => compare("Greater", self, other, |a, b| a > b),
        }
    }
    fn ge(self, other: Node) -> Mask {
        compare("GreaterOrEqual", self, other, |a, b| a >= b)
    }
    fn eq(self, other: Node) -> Mask {
        match (self, other) {
            (Node::Item(a), Node::Item(b)) if a == b && dtype().is_float() => !Mask::Item(apply("IsNaN", &[a])),
            (Node::Bool(m), zero) | (zero, Node::Bool(m)) if is_constant(zero, 0.0) => !Mask::Item(m),
            (Node::Bool(m), one) | (one, Node::Bool(m)) if is_constant(one, 1.0) => Mask::Item(m),
            (Node::Bool(a), Node::Bool(b)) => Mask::Item(apply("Equal", &[a, b])),
            (a, b) => compare("Equal", a, b, |a, b| a == b),
        }
    }
    fn select(mask: Mask, yes: Node, no: Node) -> Node {
        match (mask, yes, no) {
            (Mask::Known(true), yes, _) => yes,
            (Mask::Known(false), _, no) => no,
            // Logic of bool, which is not in every program's `Where`.
            (Mask::Item(m), Node::Bool(a), Node::Bool(b)) if b == m => Node::Bool(apply("And", &[m, a])),
            (Mask::Item(m), Node::Bool(a), Node::Bool(b)) if a == m => Node::Bool(apply("Or", &[m, b])),
            (Mask::Item(m), Node::Bool(a), Node::Bool(b)) => {
                let (not, a) = (apply("Not", &[m]), apply("And", &[m, a]));
                let b = apply("And", &[not, b]);
                Node::Bool(apply("Or", &[a, b]))
            }
            (Mask::Item(m), yes, no) => Node::Item(apply("Where", &[m, item(yes), item(no)])),
        }
    }
    fn max(self, other: Node) -> Node {
        binary("Max", self, other, f64::max, Value::max)
    }
    fn min(self, other: Node) -> Node {
        binary("Min", self, other, f64::min, Value::min)
    }
    fn one_if(mask: Mask) -> Node {
        match mask {
            Mask::Known(known) => Node::c(known.into()),
            Mask::Item(i) => Node::Bool(i),
        }
    }
    fn abs(self) -> Node {
        unary("Abs", self, f64::abs)
    }
}

macro_rules! functions {
    ($($name:ident $op:literal;)*) => {$(
        fn $name(self) -> Node {
            unary($op, self, Real::$name)
        }
    )*};
}

impl Real for Node {
    functions! {
        exp "Exp"; log "Log"; sqrt "Sqrt"; sin "Sin"; cos "Cos"; tan "Tan"; asin "Asin"; acos "Acos"; atan "Atan"; sinh "Sinh";
        cosh "Cosh"; tanh "Tanh"; asinh "Asinh"; acosh "Acosh"; atanh "Atanh"; erf "Erf"; floor "Floor"; ceil "Ceil"; round "Round";
        sigmoid "Sigmoid"; softplus "Softplus";
    }

    fn expm1(self) -> Node {
        // e^x - 1 = 2 sinh(x / 2) e^(x / 2), which is exact near 0.
        let (one, half) = (Node::c(1.0), self * Node::c(0.5));
        let near = half.sinh() * half.exp() * Node::c(2.0);
        Node::select(self.abs().lt(one), near, self.exp() - one)
    }
    fn exp2(self) -> Node {
        Real::pow(Node::c(2.0), self)
    }
    fn log2(self) -> Node {
        self.log() / Node::c(LN_2)
    }
    fn log10(self) -> Node {
        self.log() / Node::c(LN_10)
    }
    fn log1p(self) -> Node {
        // ln(1 + x) = 2 atanh(x / (2 + x)), which is exact near 0.
        let near = (self / (self + Node::c(2.0))).atanh() * Node::c(2.0);
        Node::select(self.abs().lt(Node::c(0.5)), near, (self + Node::c(1.0)).log())
    }
    fn atan2(self, x: Node) -> Node {
        // To the left of the axis the angle is turned by pi, with the sign of y.
        let (zero, pi, angle) = (Node::c(0.0), Node::c(PI), (self / x).atan());
        let turned = Node::select(self.lt(zero), angle - pi, angle + pi);
        let angle = Node::select(x.lt(zero), turned, angle);
        Node::select(x.eq(zero), self.sign() * Node::c(FRAC_PI_2), angle)
    }
    fn erfc(self) -> Node {
        // The difference cancels where erf is near 1. There, with t = 1 / (1 + z / 2), erfc(z) = t e^(-z^2 + p(t)) to 1.2e-7 of itself: Press et
        // al., Numerical Recipes, "erfcc". In f64 the difference has as many digits up to 4.
        let (c, half) = (Node::c, Node::c(0.5));
        let t = c(1.0) / (c(1.0) + half * self);
        let p = [-0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368];
        let p = p.iter().fold(c(0.17087277), |sum, &k| sum * t + c(k)) * t - c(1.26551223);
        let from = if dtype() == DType::F64 { 4.0 } else { 0.5 };
        Node::select(self.gt(c(from)), t * (p - self * self).exp(), c(1.0) - self.erf())
    }
    fn pow(self, other: Node) -> Node {
        binary("Pow", self, other, f64::powf, Integer::pow)
    }
    fn trunc(self) -> Node {
        Node::select(self.lt(Node::c(0.0)), self.ceil(), self.floor())
    }
    fn fmod(self, other: Node) -> Node {
        Node::Item(apply_with("Mod", &[item(self), item(other)], Some(int("fmod", 1))))
    }
}

impl Integer for Node {
    fn div_floor(self, other: Node) -> Node {
        let rest = Node::Item(apply("Mod", &[item(self), item(other)]));
        (self - rest).div_trunc(other)
    }
    fn div_trunc(self, other: Node) -> Node {
        self / other
    }
    fn pow(self, other: Node) -> Node {
        Real::pow(self, other)
    }
    fn and(self, other: Node) -> Node {
        Node::Item(apply("BitwiseAnd", &[item(self), item(other)]))
    }
    fn or(self, other: Node) -> Node {
        Node::Item(apply("BitwiseOr", &[item(self), item(other)]))
    }
    fn xor(self, other: Node) -> Node {
        Node::Item(apply("BitwiseXor", &[item(self), item(other)]))
    }
    fn shift_left(self, other: Node) -> Node {
        let is_within = Node::c(0.0).le(other) & other.lt(Node::c(64.0));
        Node::select(is_within, shifted(self, "LEFT", other), Node::c(0.0))
    }
    fn shift_right(self, other: Node) -> Node {
        let is_within = Node::c(0.0).le(other) & other.lt(Node::c(64.0));
        let by = Node::select(is_within, other, Node::c(63.0));
        // The bits of -1 - x are those of x inverted.
        let (is_negative, all) = (self.lt(Node::c(0.0)), Node::c(-1.0));
        let size = shifted(Node::select(is_negative, all - self, self), "RIGHT", by);
        Node::select(is_negative, all - size, size)
    }
}

/// The bits of x, shifted.
fn shifted(x: Node, direction: &str, by: Node) -> Node {
    let (x, by) = (cast_to(item(x), UINT64), cast_to(item(by), UINT64));
    let found = apply_with("BitShift", &[x, by], Some(graph::text("direction", direction)));
    Node::Item(cast(found, dtype()))
}
