"""A PyTorch module and a configuration become a C++ program that trains; its weights come back as ONNX."""

import json
import os
import subprocess
import sys
from pathlib import Path

import meta500

Path("net.py").write_text("""
from torch import nn


class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1)
        self.head = nn.Linear(16 * channels, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        return self.head(x.flatten(1))
""")
Path("train.toml").write_text("""
[data]
name = "digits"

[model]
options = { channels = 8 }

[train]
epochs = 5
batch_size = 32
loss = "cross_entropy"
optimizer = "adamw"
learning_rate = 3e-3
weight_decay = 0.01
threads = 1
""")
generate = [sys.executable, "-m", "meta500", "generate", "cpp", "net.py", "--config", "train.toml"]
done = subprocess.run(
    [*generate, "--program", "--out", "program"], check=True, capture_output=True, text=True
)
command = done.stdout.splitlines()[-1]  # g++; the line before it has the same with CMake
subprocess.run(command, shell=True, check=True)

done = subprocess.run(["program/train", "--out", "weights.safetensors"], check=True, stdout=subprocess.PIPE)
for line in map(json.loads, done.stdout.splitlines()):
    if line["event"] == "epoch":
        print(f"epoch {line['epoch']}: loss {line['loss']:.4f}, accuracy {line['validation_accuracy']:.4f}")

subprocess.run([*generate, "--import", "weights.safetensors", "--out", "net.onnx"], check=True)
_, test_set = meta500.datasets.load("digits")
with meta500.network(meta500.load("net.onnx"), backend="numpy") as network:
    logits = network.inference(dict(test_set.inputs))["logits"]
accuracy = (logits.argmax(axis=1) == test_set.inputs["label"]).mean()
print(f"the same network in Python: accuracy {accuracy:.4f}; {os.path.getsize('net.onnx')} bytes of ONNX")
