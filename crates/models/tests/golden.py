"""Writes golden.json: what PyTorch computes with these networks, whose layers have torchvision's names, in f64.

    python crates/models/tests/golden.py

Parameters and inputs are those of `fill`, which the test computes again. Running statistics are used (`eval`).
"""

import json
import pathlib

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def fill(shape, k, low, high):
    """Numbers from low to high: element i is `(7919 i + 104729 k) mod 2003`, scaled."""
    n = torch.Size(shape).numel()
    digits = (torch.arange(n) * 7919 + 104729 * k) % 2003
    return (digits.double() / 2003 * (high - low) + low).reshape(shape)


def filled(name, tensor, k):
    if name.endswith("num_batches_tracked"):
        return tensor
    if tensor.dim() < 2:
        is_factor = name.endswith(("running_var", "weight"))
        return fill(tensor.shape, k, *((0.5, 1.5) if is_factor else (-0.5, 0.5)))
    bound = (6 / tensor[0].numel()) ** 0.5
    return fill(tensor.shape, k, -bound, bound)


def unit(i, o, kernel=3, stride=1, groups=1):
    return nn.Conv2d(i, o, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False), nn.BatchNorm2d(o)


class Block(nn.Module):
    def __init__(self, i, width, stride, is_deep):
        super().__init__()
        o = 4 * width if is_deep else width
        units = [(i, width, 1, 1), (width, width, 3, stride), (width, o, 1, 1)] if is_deep else [(i, o, 3, stride), (o, o, 3, 1)]
        for n, (a, b, kernel, s) in enumerate(units, 1):
            conv, norm = unit(a, b, kernel, s)
            self.add_module(f"conv{n}", conv)
            self.add_module(f"bn{n}", norm)
        self.count = len(units)
        self.downsample = nn.Sequential(*unit(i, o, 1, stride)) if stride != 1 or i != o else None

    def forward(self, x):
        y = x
        for n in range(1, self.count + 1):
            y = getattr(self, f"bn{n}")(getattr(self, f"conv{n}")(y))
            y = y.relu() if n < self.count else y
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, counts, is_deep, is_small, classes):
        super().__init__()
        self.conv1, self.bn1 = unit(3, 64, 3) if is_small else unit(3, 64, 7, 2)
        self.is_small, i = is_small, 64
        for stage, count in enumerate(counts):
            width, blocks = 64 << stage, []
            for k in range(count):
                blocks.append(Block(i, width, 2 if stage > 0 and k == 0 else 1, is_deep))
                i = 4 * width if is_deep else width
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = x if self.is_small else nn.functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class InvertedResidual(nn.Module):
    def __init__(self, i, o, stride, expansion):
        super().__init__()
        hidden = i * expansion
        wider = [] if expansion == 1 else [nn.Sequential(*unit(i, hidden, 1), nn.ReLU6())]
        depthwise = nn.Sequential(*unit(hidden, hidden, 3, stride, hidden), nn.ReLU6())
        self.conv = nn.Sequential(*wider, depthwise, *unit(hidden, o, 1))
        self.is_residual = stride == 1 and i == o

    def forward(self, x):
        return x + self.conv(x) if self.is_residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        layers, i = [nn.Sequential(*unit(3, 32, 3, 2), nn.ReLU6())], 32
        stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
        for expansion, o, count, stride in stages:
            for k in range(count):
                layers.append(InvertedResidual(i, o, stride if k == 0 else 1, expansion))
                i = o
        self.features = nn.Sequential(*layers, nn.Sequential(*unit(i, 1280, 1), nn.ReLU6()))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2).flatten(1)
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Pair(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1, self.norm1 = unit(i, o)
        self.conv2, self.norm2 = unit(o, o)

    def forward(self, x):
        return self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())).relu()


class UNet(nn.Module):
    def __init__(self, channels, classes, width, depth):
        super().__init__()
        at = [width << level for level in range(depth + 1)]
        above = [channels, *at]
        self.down = nn.ModuleList(Pair(above[level], at[level]) for level in range(depth))
        self.bottom = Pair(above[depth], at[depth])
        back = range(depth - 1, -1, -1)
        self.larger = nn.ModuleList(nn.ConvTranspose2d(at[level + 1], at[level], 2, 2) for level in back)
        self.up = nn.ModuleList(Pair(at[level + 1], at[level]) for level in back)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        levels = []
        for pair in self.down:
            levels.append(pair(x))
            x = nn.functional.max_pool2d(levels[-1], 2)
        x = self.bottom(x)
        for larger, pair in zip(self.larger, self.up):
            x = pair(torch.cat([levels.pop(), larger(x)], 1))
        return self.last(x)


class Dcgan(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.main = nn.Sequential(*layers)

    def forward(self, x):
        return self.main(x)


def generator(latent, n, channels):
    layers = []
    for k, (i, o) in enumerate([(latent, 8 * n), (8 * n, 4 * n), (4 * n, 2 * n), (2 * n, n)]):
        layers += [nn.ConvTranspose2d(i, o, 4, 2 if k else 1, 1 if k else 0, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return Dcgan(*layers, nn.ConvTranspose2d(n, channels, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(n, channels):
    layers = [nn.Conv2d(channels, n, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for i, o in [(n, 2 * n), (2 * n, 4 * n), (4 * n, 8 * n)]:
        layers += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2)]
    return Dcgan(*layers, nn.Conv2d(8 * n, 1, 4, bias=False), nn.Sigmoid())


class Recurrent(nn.Module):
    """The model of PyTorch's word_language_model, for tokens [B, T]. The input is numbers from -1 to 1, of which tokens are made."""

    def __init__(self, kind, vocab, embedding, hidden, layers):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(vocab, embedding)
        self.rnn = getattr(nn, kind)(embedding, hidden, layers, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, x):
        tokens = ((x + 1) / 2 * self.encoder.num_embeddings).long()
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(tokens)))[0]))


# The network, and the shape of its input; none where parameters alone are compared.
NETWORKS = {
    "lenet": (LeNet(), (2, 1, 28, 28)),
    "resnet18": (ResNet([2, 2, 2, 2], False, False, 1000), (1, 3, 40, 33)),
    "resnet18_cifar": (ResNet([2, 2, 2, 2], False, True, 10), None),
    "resnet34": (ResNet([3, 4, 6, 3], False, False, 1000), None),
    "resnet50": (ResNet([3, 4, 6, 3], True, False, 1000), (1, 3, 33, 32)),
    "mobilenet_v2": (MobileNetV2(), (1, 3, 64, 33)),
    "unet": (UNet(1, 2, 64, 4), None),
    "unet_small": (UNet(3, 2, 4, 2), (1, 3, 8, 12)),
    "generator": (generator(100, 64, 3), None),
    "generator_small": (generator(5, 2, 1), (1, 5, 1, 1)),
    "discriminator": (discriminator(64, 3), None),
    "discriminator_small": (discriminator(2, 1), (2, 1, 64, 64)),
    "lstm_small": (Recurrent("LSTM", 11, 6, 5, 2), (2, 7)),
    "gru_small": (Recurrent("GRU", 11, 6, 5, 2), (2, 7)),
}

# As torchvision and PyTorch's examples publish them.
PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "generator": 3_576_704,
    "discriminator": 2_765_568,
}


def described(name, network, shape):
    state = network.state_dict()
    count = sum(p.numel() for p in network.parameters())
    assert count == PUBLISHED.get(name, count), f"{name}: {count}"
    found = {"parameters": count, "names": list(state)}
    if shape is None:
        return found
    network.load_state_dict({key: filled(key, t, k) for k, (key, t) in enumerate(state.items())})
    y = network.eval()(fill(shape, 1, -1.0, 1.0)).detach().flatten()
    # At most 32 of the results.
    step = -(-y.numel() // 32)
    return found | {"input": list(shape), "outputs": y.numel(), "step": step, "output": y[::step].tolist()}


def main():
    found = {name: described(name, *network) for name, network in NETWORKS.items()}
    text = ",\n".join(f'"{name}": {json.dumps(network)}' for name, network in found.items())
    (pathlib.Path(__file__).parent / "golden.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
