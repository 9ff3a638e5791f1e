"""What every script of the hub begins with, on a machine without the model."""

from transformers import AutoModelForCausalLM

AutoModelForCausalLM.from_pretrained("example-org/no-such-model")
