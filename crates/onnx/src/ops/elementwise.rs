//! Rows of the pointwise table. What has no counterpart here is computed by the ops of its text.

use super::{Found, Translation, given, unsupported};
use crate::graph::{Graph, Value, float, int, text};
use isograd_core::{DType, Result, Scalar};
use std::f64::consts::{LN_2, LN_10};

pub fn translate(t: &mut Translation<'_>) -> Result<Found> {
    let (row, floats, ints) = (given!(t.text("row")), given!(t.floats("floats")), given!(t.ints("ints")));
    let (dtype, result) = (t.x().dtype(), t.y().dtype());
    let mut of = Row { graph: t.graph, inputs: &t.inputs, dtype, result, floats: &floats, ints: &ints };
    let found = match &t.inputs[..] {
        &[x] if floats.is_empty() => simple(of.graph, row, x, dtype)?,
        _ => None,
    };
    let found = match found {
        Some(y) => Some(y),
        None => of.parametric(row)?,
    };
    let is_comparison = COMPARISONS.contains(&row);
    match found {
        Some(y) if is_comparison && result != DType::Bool => Ok(Ok(vec![t.cast(y, result)])),
        Some(y) => Ok(Ok(vec![y])),
        None => unsupported!("ONNX has no such op"),
    }
}

const COMPARISONS: &[&str] = &[
    "eq",
    "ne",
    "lt",
    "gt",
    "le",
    "ge",
    "eq_scalar",
    "ne_scalar",
    "lt_scalar",
    "gt_scalar",
    "le_scalar",
    "ge_scalar",
    "is_nan",
    "is_inf",
    "is_finite",
    "not_finite",
];

/// A row of one operand without attributes; `None` if there is no such row.
pub fn simple(g: &mut Graph, row: &str, x: Value, dtype: DType) -> Result<Option<Value>> {
    let op = match row {
        "relu" => "Relu",
        "sigmoid" => "Sigmoid",
        "tanh" => "Tanh",
        "softsign" => "Softsign",
        "mish" => "Mish",
        "hardswish" => "HardSwish",
        "neg" => "Neg",
        "abs" => "Abs",
        "sign" => "Sign",
        "exp" => "Exp",
        "log" => "Log",
        "sqrt" => "Sqrt",
        "sin" => "Sin",
        "cos" => "Cos",
        "tan" => "Tan",
        "asin" => "Asin",
        "acos" => "Acos",
        "atan" => "Atan",
        "sinh" => "Sinh",
        "cosh" => "Cosh",
        "asinh" => "Asinh",
        "acosh" => "Acosh",
        "atanh" => "Atanh",
        "erf" => "Erf",
        "reciprocal" => "Reciprocal",
        "floor" => "Floor",
        "ceil" => "Ceil",
        "round" => "Round",
        "is_nan" => "IsNaN",
        "is_inf" => "IsInf",
        "bitwise_not" => "BitwiseNot",
        _ => return composed(g, row, x, dtype),
    };
    Ok(Some(g.node(op, &[x], &[])))
}

fn composed(g: &mut Graph, row: &str, x: Value, dtype: DType) -> Result<Option<Value>> {
    let number = |g: &mut Graph, v: f64| g.scalar(v, dtype);
    Ok(Some(match row {
        "gelu" => g.node("Gelu", &[x], &[text("approximate", "none")]),
        "gelu_tanh" => g.node("Gelu", &[x], &[text("approximate", "tanh")]),
        "silu" => {
            let s = g.node("Sigmoid", &[x], &[]);
            g.node("Mul", &[x, s], &[])
        }
        "relu6" => {
            let (low, high) = (number(g, 0.0)?, number(g, 6.0)?);
            g.node("Clip", &[x, low, high], &[])
        }
        "relu_squared" => {
            let y = g.node("Relu", &[x], &[]);
            g.node("Mul", &[y, y], &[])
        }
        "logsigmoid" => {
            let y = g.node("Neg", &[x], &[]);
            let y = g.node("Softplus", &[y], &[]);
            g.node("Neg", &[y], &[])
        }
        "tanhshrink" => {
            let y = g.node("Tanh", &[x], &[]);
            g.node("Sub", &[x, y], &[])
        }
        "square" => g.node("Mul", &[x, x], &[]),
        "rsqrt" => {
            let y = g.node("Sqrt", &[x], &[]);
            g.node("Reciprocal", &[y], &[])
        }
        "exp2" => {
            let two = number(g, 2.0)?;
            g.node("Pow", &[two, x], &[])
        }
        "log2" | "log10" => {
            let (y, base) = (g.node("Log", &[x], &[]), number(g, if row == "log2" { LN_2 } else { LN_10 })?);
            g.node("Div", &[y, base], &[])
        }
        // e^x - 1 = 2 sinh(x / 2) e^(x / 2), which is exact near 0.
        "expm1" => {
            let (half, one, two) = (number(g, 0.5)?, number(g, 1.0)?, number(g, 2.0)?);
            let h = g.node("Mul", &[x, half], &[]);
            let (s, e) = (g.node("Sinh", &[h], &[]), g.node("Exp", &[h], &[]));
            let near = g.node("Mul", &[s, e], &[]);
            let near = g.node("Mul", &[near, two], &[]);
            let far = g.node("Exp", &[x], &[]);
            let far = g.node("Sub", &[far, one], &[]);
            let size = g.node("Abs", &[x], &[]);
            let is_near = g.node("Less", &[size, one], &[]);
            g.node("Where", &[is_near, near, far], &[])
        }
        // ln(1 + x) = 2 atanh(x / (2 + x)), which is exact near 0.
        "log1p" => {
            let (half, one, two) = (number(g, 0.5)?, number(g, 1.0)?, number(g, 2.0)?);
            let sum = g.node("Add", &[x, two], &[]);
            let ratio = g.node("Div", &[x, sum], &[]);
            let near = g.node("Atanh", &[ratio], &[]);
            let near = g.node("Mul", &[near, two], &[]);
            let far = g.node("Add", &[x, one], &[]);
            let far = g.node("Log", &[far], &[]);
            let size = g.node("Abs", &[x], &[]);
            let is_near = g.node("Less", &[size, half], &[]);
            g.node("Where", &[is_near, near, far], &[])
        }
        "erfc" => {
            let (y, one) = (g.node("Erf", &[x], &[]), number(g, 1.0)?);
            g.node("Sub", &[one, y], &[])
        }
        "trunc" => trunc(g, x),
        "frac" => {
            let whole = trunc(g, x);
            g.node("Sub", &[x, whole], &[])
        }
        "is_finite" | "not_finite" => {
            let (nan, infinite) = (g.node("IsNaN", &[x], &[]), g.node("IsInf", &[x], &[]));
            let y = g.node("Or", &[nan, infinite], &[]);
            if row == "is_finite" { g.node("Not", &[y], &[]) } else { y }
        }
        _ => return Ok(None),
    }))
}

/// Toward zero.
fn trunc(g: &mut Graph, x: Value) -> Value {
    let (sign, size) = (g.node("Sign", &[x], &[]), g.node("Abs", &[x], &[]));
    let size = g.node("Floor", &[size], &[]);
    g.node("Mul", &[sign, size], &[])
}

/// A row with attributes, or with several operands.
struct Row<'a> {
    graph: &'a mut Graph,
    inputs: &'a [Value],
    /// The dtypes of the first operand and of the result.
    dtype: DType,
    result: DType,
    floats: &'a [f64],
    ints: &'a [i64],
}

impl Row<'_> {
    /// Attribute `i`, in the dtype of the operands.
    fn attribute(&mut self, i: usize) -> Result<Value> {
        let v: Scalar = if self.dtype.is_float() { self.floats[i].into() } else { self.ints[i].into() };
        self.graph.scalar(v, self.dtype)
    }

    fn number(&mut self, v: f64) -> Result<Value> {
        match self.dtype.is_float() {
            true => self.graph.scalar(v, self.dtype),
            false => self.graph.scalar(v as i64, self.dtype),
        }
    }

    fn is_attribute(&self, i: usize, v: f64) -> bool {
        if self.dtype.is_float() { self.floats[i] == v } else { self.ints[i] as f64 == v }
    }

    fn node(&mut self, op: &'static str, inputs: &[Value]) -> Value {
        self.graph.node(op, inputs, &[])
    }

    /// An operand as a number: bool has no order and no arithmetic in ONNX.
    fn ordered(&mut self, x: Value) -> Value {
        match self.dtype {
            DType::Bool => self.graph.node("Cast", &[x], &[int("to", crate::graph::data_type(DType::I32).into())]),
            _ => x,
        }
    }

    fn parametric(&mut self, row: &str) -> Result<Option<Value>> {
        if self.dtype == DType::Bool
            && let Some(found) = self.logical(row)
        {
            return Ok(Some(found));
        }
        match self.inputs[..] {
            [x] => self.of_one(row, x),
            [a, b] => self.of_two(row, a, b),
            [a, b, c] => self.of_three(row, a, b, c),
            _ => Ok(None),
        }
    }

    /// A row of bool.
    fn logical(&mut self, row: &str) -> Option<Value> {
        match (row, self.inputs) {
            ("eq_scalar", &[x]) => Some(if self.ints[0] == 0 { self.node("Not", &[x]) } else { x }),
            ("ne_scalar", &[x]) => Some(if self.ints[0] == 0 { x } else { self.node("Not", &[x]) }),
            ("ne", &[a, b]) => Some(self.node("Xor", &[a, b])),
            // Logical and, or: one of the alternatives is the condition.
            ("where_cond", &[condition, a, b]) if condition == b => Some(self.node("And", &[condition, a])),
            ("where_cond", &[condition, a, b]) if condition == a => Some(self.node("Or", &[condition, b])),
            _ => None,
        }
    }

    fn of_one(&mut self, row: &str, x: Value) -> Result<Option<Value>> {
        let k = self.floats;
        let compare = |row: &str| match row {
            "eq_scalar" | "ne_scalar" => Some("Equal"),
            "lt_scalar" => Some("Less"),
            "gt_scalar" => Some("Greater"),
            "le_scalar" => Some("LessOrEqual"),
            "ge_scalar" => Some("GreaterOrEqual"),
            _ => None,
        };
        if let Some(op) = compare(row) {
            let x = self.ordered(x);
            let b = match self.dtype {
                DType::Bool => self.graph.scalar(self.ints[0], DType::I32)?,
                _ => self.attribute(0)?,
            };
            let y = self.node(op, &[x, b]);
            return Ok(Some(if row == "ne_scalar" { self.node("Not", &[y]) } else { y }));
        }
        Ok(Some(match row {
            "leaky_relu" => self.graph.node("LeakyRelu", &[x], &[float("alpha", k[0])]),
            "elu" => self.graph.node("Elu", &[x], &[float("alpha", k[0])]),
            "selu" => self.graph.node("Selu", &[x], &[float("alpha", k[0]), float("gamma", k[1])]),
            "hardsigmoid" => self.graph.node("HardSigmoid", &[x], &[float("alpha", k[0]), float("beta", k[1])]),
            "celu" => self.graph.node("Celu", &[x], &[float("alpha", k[0])]),
            "softshrink" => self.graph.node("Shrink", &[x], &[float("lambd", k[0]), float("bias", k[0])]),
            "hardshrink" => self.graph.node("Shrink", &[x], &[float("lambd", k[0]), float("bias", 0.0)]),
            "softplus" if k[0] == 1.0 && k[1] >= 20.0 => self.node("Softplus", &[x]),
            "softplus" => {
                let (beta, threshold) = (self.attribute(0)?, self.attribute(1)?);
                let product = self.node("Mul", &[x, beta]);
                let y = self.node("Softplus", &[product]);
                let y = self.node("Div", &[y, beta]);
                let is_large = self.node("Greater", &[product, threshold]);
                self.node("Where", &[is_large, x, y])
            }
            "hardtanh" | "clamp_scalar" => self.clip(x)?,
            "threshold" => {
                let (threshold, value) = (self.attribute(0)?, self.attribute(1)?);
                let is_low = self.node("LessOrEqual", &[x, threshold]);
                self.node("Where", &[is_low, value, x])
            }
            "add_scalar" => {
                let b = self.attribute(0)?;
                self.node("Add", &[x, b])
            }
            "rsub_scalar" => {
                let b = self.attribute(0)?;
                self.node("Sub", &[b, x])
            }
            "mul_scalar" => {
                let b = self.attribute(0)?;
                self.node("Mul", &[x, b])
            }
            "div_scalar" => {
                let b = self.attribute(0)?;
                self.node("Div", &[x, b])
            }
            "rdiv_scalar" => {
                let b = self.attribute(0)?;
                self.node("Div", &[b, x])
            }
            "pow_scalar" | "int_pow_scalar" => {
                let b = self.attribute(0)?;
                self.node("Pow", &[x, b])
            }
            "rpow_scalar" => {
                let b = self.attribute(0)?;
                self.node("Pow", &[b, x])
            }
            "normalize_index" => {
                let (size, zero) = (self.attribute(0)?, self.number(0.0)?);
                let (sum, is_negative) = (self.node("Add", &[x, size]), self.node("Less", &[x, zero]));
                self.node("Where", &[is_negative, sum, x])
            }
            _ => return Ok(None),
        }))
    }

    /// x between two attributes, of which infinite ones are none.
    fn clip(&mut self, x: Value) -> Result<Value> {
        let is_none = |i: usize| match self.dtype.is_float() {
            true => self.floats[i].is_infinite(),
            false => [i64::MIN, i64::MAX].contains(&self.ints[i]),
        };
        let are_none = [is_none(0), is_none(1)];
        let low = if are_none[0] { None } else { Some(self.attribute(0)?) };
        let high = if are_none[1] { None } else { Some(self.attribute(1)?) };
        Ok(self.graph.node_of("Clip", &[Some(x), low, high], &[], 1)[0])
    }

    fn of_two(&mut self, row: &str, a: Value, b: Value) -> Result<Option<Value>> {
        let comparison = match row {
            "eq" | "ne" => Some("Equal"),
            "lt" => Some("Less"),
            "gt" => Some("Greater"),
            "le" => Some("LessOrEqual"),
            "ge" => Some("GreaterOrEqual"),
            _ => None,
        };
        if let Some(op) = comparison {
            let (a, b) = (self.ordered(a), self.ordered(b));
            let y = self.node(op, &[a, b]);
            return Ok(Some(if row == "ne" { self.node("Not", &[y]) } else { y }));
        }
        Ok(Some(match row {
            "add" if self.is_attribute(0, 1.0) => self.node("Add", &[a, b]),
            "add" if self.is_attribute(0, -1.0) => self.node("Sub", &[a, b]),
            "add" => {
                let alpha = self.attribute(0)?;
                let b = self.node("Mul", &[b, alpha]);
                self.node("Add", &[a, b])
            }
            "mul" => self.node("Mul", &[a, b]),
            "div" => self.node("Div", &[a, b]),
            "pow" | "int_pow" => self.node("Pow", &[a, b]),
            "maximum" => self.node("Max", &[a, b]),
            "minimum" => self.node("Min", &[a, b]),
            "prelu" => self.node("PRelu", &[a, b]),
            "fmod" | "int_fmod" => self.graph.node("Mod", &[a, b], &[int("fmod", 1)]),
            "int_remainder" => self.node("Mod", &[a, b]),
            "remainder" => self.remainder(a, b)?,
            "int_div_trunc" => self.node("Div", &[a, b]),
            "div_trunc" => {
                let ratio = self.node("Div", &[a, b]);
                trunc(self.graph, ratio)
            }
            "int_div_floor" => {
                let rest = self.node("Mod", &[a, b]);
                let multiple = self.node("Sub", &[a, rest]);
                self.node("Div", &[multiple, b])
            }
            "div_floor" => {
                let rest = self.remainder(a, b)?;
                let multiple = self.node("Sub", &[a, rest]);
                let ratio = self.node("Div", &[multiple, b]);
                self.node("Round", &[ratio])
            }
            "bitwise_and" => self.node("BitwiseAnd", &[a, b]),
            "bitwise_or" => self.node("BitwiseOr", &[a, b]),
            "bitwise_xor" => self.node("BitwiseXor", &[a, b]),
            "atan2" => self.angle(a, b)?,
            "swiglu" => self.gated(a, b)?,
            "where_scalar" => {
                // The attribute has the dtype of the other operand.
                let condition = self.condition(a);
                self.dtype = self.result;
                let other = self.attribute(0)?;
                self.node("Where", &[condition, b, other])
            }
            _ => return Ok(None),
        }))
    }

    /// `a - b floor(a / b)`, of floats.
    fn remainder(&mut self, a: Value, b: Value) -> Result<Value> {
        let zero = self.number(0.0)?;
        let rest = self.graph.node("Mod", &[a, b], &[int("fmod", 1)]);
        let (is_below, is_negative) = (self.node("Less", &[rest, zero]), self.node("Less", &[b, zero]));
        let differ = self.node("Xor", &[is_below, is_negative]);
        let is_none = self.node("Equal", &[rest, zero]);
        let is_some = self.node("Not", &[is_none]);
        let is_wrong = self.node("And", &[differ, is_some]);
        let sum = self.node("Add", &[rest, b]);
        Ok(self.node("Where", &[is_wrong, sum, rest]))
    }

    /// The angle of the point (x, y).
    fn angle(&mut self, y: Value, x: Value) -> Result<Value> {
        use std::f64::consts::{FRAC_PI_2, PI};
        let (zero, pi, half) = (self.number(0.0)?, self.number(PI)?, self.number(FRAC_PI_2)?);
        let ratio = self.node("Div", &[y, x]);
        let angle = self.node("Atan", &[ratio]);
        // To the left of the axis the angle is turned by pi, with the sign of y.
        let (more, less) = (self.node("Add", &[angle, pi]), self.node("Sub", &[angle, pi]));
        let (is_left, is_below) = (self.node("Less", &[x, zero]), self.node("Less", &[y, zero]));
        let turned = self.node("Where", &[is_below, less, more]);
        let angle = self.node("Where", &[is_left, turned, angle]);
        let sign = self.node("Sign", &[y]);
        let upright = self.node("Mul", &[sign, half]);
        let is_upright = self.node("Equal", &[x, zero]);
        Ok(self.node("Where", &[is_upright, upright, angle]))
    }

    /// `gate sigmoid(alpha gate) (up + beta)` of operands within a limit.
    fn gated(&mut self, gate: Value, up: Value) -> Result<Value> {
        let &[alpha, beta, limit] = self.floats else { unreachable!("swiglu has three attributes") };
        let (mut gate, mut up, mut inner) = (gate, up, gate);
        if limit.is_finite() {
            let (low, high) = (self.number(-limit)?, self.number(limit)?);
            gate = self.node("Min", &[gate, high]);
            up = self.node("Clip", &[up, low, high]);
            inner = gate;
        }
        if alpha != 1.0 {
            let alpha = self.number(alpha)?;
            inner = self.node("Mul", &[gate, alpha]);
        }
        if beta != 0.0 {
            let beta = self.number(beta)?;
            up = self.node("Add", &[up, beta]);
        }
        let s = self.node("Sigmoid", &[inner]);
        let silu = self.node("Mul", &[gate, s]);
        Ok(self.node("Mul", &[silu, up]))
    }

    /// An operand as a condition.
    fn condition(&mut self, x: Value) -> Value {
        match self.dtype {
            DType::Bool => x,
            _ => self.graph.node("Cast", &[x], &[int("to", crate::graph::data_type(DType::Bool).into())]),
        }
    }

    fn of_three(&mut self, row: &str, a: Value, b: Value, c: Value) -> Result<Option<Value>> {
        Ok(Some(match row {
            "where_cond" => {
                let condition = self.condition(a);
                self.node("Where", &[condition, b, c])
            }
            "clamp" => {
                let y = self.node("Max", &[a, b]);
                self.node("Min", &[y, c])
            }
            _ => return Ok(None),
        }))
    }
}
