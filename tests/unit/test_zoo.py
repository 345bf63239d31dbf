"""The zoo: published sizes, config files and user factories, without weights or network."""

import json
import socket
import subprocess
import sys
import textwrap

import pytest

from autoplan import zoo
from autoplan.errors import PlanError

PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}
TINY = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the zoo opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_importing_the_zoo_loads_no_torch():
    code = "import sys, autoplan.zoo as z; z.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_preset_has_its_published_size():
    assert set(zoo.names()) == set(PARAMETERS)
    for name, count in PARAMETERS.items():
        subject = zoo.build(name)
        assert sum(parameter.numel() for parameter in subject.model.parameters()) == count
        assert {parameter.device.type for parameter in subject.model.parameters()} == {"meta"}
        assert subject.model.training
        length = 1024 if name.startswith("gpt2") else 8192
        assert subject.seq_len == length
        assert {key: tuple(t.shape) for key, t in subject.example_inputs.items()} == {
            "input_ids": (2, length),
            "labels": (2, length),
        }


def test_dropout_is_the_published_configs():
    gpt2, llama = zoo.build("gpt2").model.config, zoo.build("llama3-8b").model.config
    assert (gpt2.resid_pdrop, gpt2.embd_pdrop, gpt2.attn_pdrop) == (0.1, 0.1, 0.1)
    assert llama.attention_dropout == 0.0


def test_sequence_lengths():
    assert zoo.build("gpt2", seq_len=256).example_inputs["labels"].shape == (2, 256)
    with pytest.raises(PlanError, match="2048 exceeds the model's maximum of 1024"):
        zoo.build("gpt2", seq_len=2048)
    for nothing in (1, 0, -5):
        with pytest.raises(PlanError, match="give 2 or more"):
            zoo.build("gpt2", seq_len=nothing)
    with pytest.raises(PlanError, match="no model named 'gpt5' in the zoo; it has gpt2"):
        zoo.build("gpt5")


def _write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_config_file(tmp_path):
    path = _write(tmp_path, TINY)
    subject = zoo.from_config(path)
    assert type(subject.model).__name__ == "LlamaForCausalLM"
    assert subject.seq_len == 64
    assert {str(parameter.dtype) for parameter in subject.model.parameters()} == {"torch.float32"}
    assert zoo.from_config(path, seq_len=16).example_inputs["input_ids"].shape == (2, 16)
    assert zoo.from_config(str(path), seq_len=16).seq_len == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[1, 2]", "holds a list where an object is expected"),
        ({"hidden_size": 3}, "has no model_type"),
        ({**TINY, "model_type": "perceptron9000"}, "knows no architecture 'perceptron9000'"),
        ({"model_type": "vit"}, "'vit' is no causal language model"),
        ({**TINY, "num_attention_heads": "many"}, "refuses this config"),
        ({**TINY, "hidden_size": -4}, "refuses this config"),
        ({**TINY, "quantization_config": {"bits": 4}}, "quantized model"),
        ({**TINY, "padding": "x" * (1 << 20)}, "is larger than"),
    ],
)
def test_bad_config_files_are_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(PlanError) as caught:
        zoo.from_config(_write(tmp_path, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_too_long_sequences(tmp_path):
    with pytest.raises(PlanError, match=r"cannot read .*absent"):
        zoo.from_config(tmp_path / "absent.json")
    with pytest.raises(PlanError, match="exceeds the model's maximum of 64"):
        zoo.from_config(_write(tmp_path, TINY), seq_len=65)


def test_code_in_a_config_is_never_run(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    evil = {**TINY, "model_type": "evil", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
    with pytest.raises(PlanError, match="knows no architecture 'evil'"):
        zoo.from_config(_write(tmp_path, evil))
    mapped = {**TINY, "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
    subject = zoo.from_config(_write(tmp_path, mapped))
    assert type(subject.model).__module__.startswith("transformers.models.llama")


def test_without_transformers_the_cure_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install autoplan-torch\[zoo\]"):
        zoo.build("gpt2")


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn
            value = 3
            def alone(): return nn.Linear(2, 2)
            def with_inputs(): return nn.Linear(2, 2), (torch.ones(4, 2),)
            def with_loss(): return nn.Linear(2, 2), {"x": torch.ones(4, 2)}, lambda o, t: o.sum()
            def raises(): raise RuntimeError("no data\\nfound")
            def number(): return 7
            def listed(): return nn.Linear(2, 2), [torch.ones(4, 2)]
            """
        )
    )
    (tmp_path / "my_broken.py").write_text("import absent_dependency")
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("my_models", "my_broken"):
        sys.modules.pop(name, None)


def test_factories_return_up_to_three_parts(factories):
    before = list(sys.path)
    subject = zoo.from_factory("my_models:with_inputs")
    assert isinstance(subject.example_inputs, tuple)
    assert subject.loss_fn is None
    subject = zoo.from_factory("my_models:with_loss")
    assert list(subject.example_inputs) == ["x"]
    assert subject.loss_fn is not None
    assert sys.path == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_models", "write package.module:function"),
        ("my_absent:build", "cannot import my_absent"),
        ("my_broken:build", "No module named 'absent_dependency'"),
        ("my_models:absent", "my_models has nothing named 'absent'"),
        ("my_models:value", "my_models has nothing callable named 'value'"),
        ("my_models:raises", "my_models:raises raised RuntimeError: no data"),
        ("my_models:number", "returned (int)"),
        ("my_models:alone", "return (model, example_inputs)"),
        ("my_models:listed", "example inputs of type list"),
    ],
)
def test_bad_factories_are_refused_in_one_line(factories, spec, message):
    with pytest.raises(PlanError) as caught:
        zoo.from_factory(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
