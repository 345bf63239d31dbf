"""The zoo: published sizes, config files and user factories, without weights or network."""

import json
import socket
import subprocess
import sys
import textwrap

import pytest

from autoplan import zoo
from autoplan.errors import PlanError

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


def test_sequence_lengths():
    assert zoo.build("gpt2", seq_len=256).example_inputs["labels"].shape == (2, 256)
    with pytest.raises(PlanError, match="2048 exceeds the model's maximum of 1024"):
        zoo.build("gpt2", seq_len=2048)
    for nothing in (1, 0, -5):
        with pytest.raises(PlanError, match="give 2 or more"):
            zoo.build("gpt2", seq_len=nothing)
    with pytest.raises(PlanError, match="no model named 'gpt5' in the zoo; `autoplan models`"):
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


_BERT = {
    "model_type": "bert", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
_T5 = {
    "model_type": "t5", "vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
    "num_heads": 4, "n_positions": 32,
}  # fmt: skip
_VIT = {
    "model_type": "vit", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": 32, "patch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "built", "seq_len"),
    [
        (_BERT, "BertForMaskedLM", 64),
        ({**_BERT, "architectures": ["BertModel"]}, "BertForMaskedLM", 64),
        ({**_BERT, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM", 64),
        (
            {**_BERT, "model_type": "roberta", "architectures": ["RobertaForCausalLM"],
             "is_decoder": True, "pad_token_id": 1},
            "RobertaForCausalLM", 62,
        ),
        (_T5, "T5ForConditionalGeneration", 32),
        (_VIT, "ViTForImageClassification", None),
    ],
)  # fmt: skip
def test_the_task_of_a_config(tmp_path, content, built, seq_len):
    """RoBERTa's positions start behind the padding token's number, 1."""
    subject = zoo.from_config(_write(tmp_path, content))
    assert type(subject.model).__name__ == built
    assert subject.seq_len == seq_len


def test_images_have_one_class_and_no_sequence(tmp_path):
    path = _write(tmp_path, {**_VIT, "image_size": [32, 48], "num_labels": 7})
    shapes = {key: tuple(t.shape) for key, t in zoo.from_config(path).example_inputs.items()}
    assert shapes == {"pixel_values": (2, 3, 32, 48), "labels": (2,)}
    with pytest.raises(PlanError, match="an image classifier and takes no sequence length"):
        zoo.from_config(path, seq_len=16)
    path = _write(tmp_path, {**_VIT, "problem_type": "regression"})
    with pytest.raises(PlanError, match="the problem type 'regression' has no inputs"):
        zoo.from_config(path)


def test_relative_positions_have_no_maximum(tmp_path):
    subject = zoo.from_config(_write(tmp_path, _T5), seq_len=100)
    assert {tuple(t.shape) for t in subject.example_inputs.values()} == {(2, 100)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[1, 2]", "holds a list where an object is expected"),
        ({"hidden_size": 3}, "has no model_type"),
        ({**TINY, "model_type": "perceptron9000"}, "knows no architecture 'perceptron9000'"),
        (
            {"model_type": "clip_text_model"},
            "'clip_text_model' is none of speech recogniser",
        ),
        (
            {**TINY, "architectures": ["LlamaForTokenClassification"]},
            "a LlamaForTokenClassification",
        ),
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
        zoo.build("opt-125m")
    assert zoo.build("gpt2").seq_len == 1024


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
