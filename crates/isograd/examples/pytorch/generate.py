"""Writes mlp.pt: the weights of a small network, and an input with its output, by torch.save."""

import pathlib

import torch

torch.manual_seed(0)
net = torch.nn.Sequential()
net.add_module("first", torch.nn.Linear(3, 5))
net.add_module("relu", torch.nn.ReLU())
net.add_module("last", torch.nn.Linear(5, 2))
x = torch.randn(4, 3)
with torch.no_grad():
    example = {"example.x": x, "example.y": net(x)}
torch.save({**net.state_dict(), **example}, pathlib.Path(__file__).parent / "mlp.pt")
