//! The optimizers by name, with a rate at which each learns.

use super::batch::Predict;
use super::mixed::Mixed;
use clap::ValueEnum;
use isograd::nn::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, Lamb, Lars, Lion, Nadam, Optimizer, Radam, RmsProp, Rprop,
    Sgd,
};
use serde::{Deserialize, Serialize};

macro_rules! optimizers {
    ($($name:ident $lr:literal $help:literal |$model:ident| $make:expr;)*) => {
        /// The optimizer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum OptimizerName {
            $(
                #[doc = $help]
                #[value(help = concat!($help, "; rate ", $lr))]
                $name
            ),*
        }

        impl OptimizerName {
            /// A rate that learns.
            pub fn lr(self) -> f64 {
                match self { $(OptimizerName::$name => $lr),* }
            }

            /// The optimizer of a model.
            pub fn of<'a>(self, model: &'a dyn Predict, lr: f64) -> Box<dyn Optimizer + 'a> {
                match self {
                    $(OptimizerName::$name => {
                        let $model = model;
                        Box::new($make.lr(lr))
                    }),*
                }
            }
        }
    };
}

optimizers! {
    Sgd 0.05 "SGD with momentum 0.9" |model| Sgd::new(model).momentum(0.9);
    Adam 0.001 "Adam" |model| Adam::new(model);
    Adamw 0.001 "AdamW with weight decay 0.01" |model| AdamW::new(model);
    Rmsprop 0.001 "RMSprop" |model| RmsProp::new(model);
    Adagrad 0.01 "Adagrad" |model| Adagrad::new(model);
    Radam 0.005 "Adam with a rectified variance" |model| Radam::new(model);
    Nadam 0.001 "Adam with Nesterov's momentum" |model| Nadam::new(model);
    Adamax 0.002 "Adam with the largest gradient in place of the variance" |model| Adamax::new(model);
    Adadelta 1.0 "Adadelta" |model| Adadelta::new(model);
    Adafactor 0.01 "Adafactor" |model| Adafactor::new(model);
    Lion 0.001 "Lion" |model| Lion::new(model);
    Rprop 0.01 "Rprop, for batches of all samples" |model| Rprop::new(model);
    Asgd 0.1 "Averaged SGD" |model| Asgd::new(model);
    Lars 5.0 "LARS with momentum 0.9" |model| Lars::new(model);
    Lamb 0.01 "LAMB with weight decay 0.01" |model| Lamb::new(model);
    Muon 0.001 "Muon for matrices, and AdamW for the rest" |model| Mixed::new(model);
}
