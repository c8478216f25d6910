"""The language part of multimodal checkpoints opens as it is saved, prefixes and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from lexray.model.model import Model
from tests.families.oracles import IDS, ORACLES, close, run
from tests.families.zoo import DEEPSEEK, GEMMA4, LATENT, LLAMA, MOE, QWEN_NEXT

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
QWEN: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "embed_dim": 16,
    "num_heads": 2,
    "intermediate_size": 12,
    "out_hidden_size": 24,
    "patch_size": 4,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [],
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1]}
QUARTER = SECTIONS | {"mrope_section": [1, 0, 0], "partial_rotary_factor": 0.25}
HALF = SECTIONS | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}
GLM = QWEN | {"image_size": 8, "out_hidden_size": 24}
PIXTRAL = VISION | {"model_type": "pixtral", "head_dim": 8}
SIGHT = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
LLAMA4 = {
    "head_dim": 8,
    "num_local_experts": 5,
    "intermediate_size_mlp": 14,
    "moe_layers": [1],
    "no_rope_layers": [1, 0],
}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        "Gemma 3",
        {"head_dim": 8, "sliding_window": 3},
        VISION | {"model_type": "siglip_vision_model"},
    ),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        "Gemma 4",
        GEMMA4
        | {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 5}
        | {"vocab_size_per_layer_input": 37},
        VISION | {"model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 8},
    ),
    "gemma4_unified": (
        "Gemma4UnifiedForConditionalGeneration",
        "Gemma 4 (unified)",
        GEMMA4,
        {"model_type": "gemma4_unified_vision", "mm_embed_dim": 16, "mm_posemb_size": 4},
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        "Llama",
        {"model_type": "llama"},
        VISION | {"model_type": "clip_vision_model", "projection_dim": 8},
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        "Mistral",
        {"model_type": "mistral", "head_dim": 8, "sliding_window": None},
        PIXTRAL,
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        "Qwen2",
        {"rope_parameters": SECTIONS},
        QWEN | {"hidden_size": 24},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2",
        {"rope_parameters": SECTIONS},
        QWEN,
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        "Qwen3",
        {"head_dim": 8, "rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1]}},
        QWEN,
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        "Qwen 3.5",
        QWEN_NEXT | {"rope_parameters": QUARTER},
        QWEN,
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen 3.5 (MoE)",
        QWEN_NEXT | MOE | {"rope_parameters": QUARTER},
        QWEN,
    ),
    "mistral3 around mistral4": (
        "Mistral3ForConditionalGeneration",
        "Mistral 4",
        LATENT | DEEPSEEK | {"model_type": "mistral4"},
        PIXTRAL,
    ),
    "lfm2_vl": (
        "Lfm2VlForConditionalGeneration",
        "LFM2",
        {
            "model_type": "lfm2",
            "block_multiple_of": 4,
            "layer_types": ["conv", "full_attention"],
        },
        VISION | {"model_type": "siglip2_vision_model", "num_patches": 4},
    ),
    "glm4v": ("Glm4vForConditionalGeneration", "GLM-4V", {"rope_parameters": SECTIONS}, GLM),
    "glm_ocr": ("GlmOcrForConditionalGeneration", "GLM-OCR", {"rope_parameters": SECTIONS}, GLM),
    "glm4v_moe": (
        "Glm4vMoeForConditionalGeneration",
        "GLM-4.5V",
        DEEPSEEK | {"head_dim": 8, "rope_parameters": HALF},
        GLM,
    ),
    "paddleocr_vl": (
        "PaddleOCRVLForConditionalGeneration",
        "PaddleOCR-VL",
        {"head_dim": 6, "rope_parameters": SECTIONS},
        VISION,
    ),
    "qwen3_omni_moe_thinker": (
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3-Omni",
        MOE | {"head_dim": 6, "rope_parameters": SECTIONS},
        QWEN,
    ),
    "qwen2_5_omni_thinker": (
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2",
        {"rope_parameters": SECTIONS},
        QWEN,
    ),
    "cohere2_vision": (
        "Cohere2VisionForConditionalGeneration",
        "Cohere 2",
        {"model_type": "cohere2", "sliding_window": 3},
        VISION | {"model_type": "siglip_vision_model"},
    ),
    "granite_docling": (
        "GraniteDoclingForConditionalGeneration",
        "Granite-Docling",
        {"head_dim": 6, "residual_multiplier": 0.4},
        VISION | {"out_hidden_size": 24},
    ),
    "hunyuan_vl": (
        "HunYuanVLForConditionalGeneration",
        "Hunyuan-VL",
        {"head_dim": 6, "rope_parameters": SECTIONS},
        VISION | {"out_hidden_size": 24, "text_hidden_size": 24},
    ),
    "idefics3": ("Idefics3ForConditionalGeneration", "Llama", {"model_type": "llama"}, VISION),
    "smolvlm": ("SmolVLMForConditionalGeneration", "Llama", {"model_type": "llama"}, VISION),
    "llama4": ("Llama4ForConditionalGeneration", "Llama 4", LLAMA4, VISION | SIGHT),
}


AUDIO: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "output_dim": 24,
    "downsample_hidden_size": 8,
}
FLAT: dict[str, tuple[str, str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "phi4_multimodal": (
        "Phi4MultimodalForCausalLM",
        "Phi-3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3}},
        {
            "vision_config": VISION | {"num_hidden_layers": 2, "crop_size": 8},
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 12,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 16,
                "nemo_conv_channels": 16,
            },
        },
    ),
}
"""Whose configs say what the language model is beside what the other senses are."""


def make(kind: str) -> PreTrainedModel:
    if kind in FLAT:
        name, _, text, others = FLAT[kind]
        entries: dict[str, Any] = LLAMA | text | others
    else:
        name, _, text, vision = CASES[kind]
        entries = {"text_config": LLAMA | text, "vision_config": vision}
        if kind.endswith("_thinker"):
            entries |= {"audio_config": AUDIO, "vision_start_token_id": 31}
    config = AutoConfig.for_model(kind.partition(" ")[0], **entries)
    torch.manual_seed(0)
    module = getattr(transformers, name)._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn_like(parameter) * 0.3
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
    whole: PreTrainedModel = module.eval()
    return whole


@pytest.mark.parametrize("kind", [*CASES, *FLAT])
def test_the_language_part(kind: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Against the whole model's own modules and its logits for text, from the file and live."""
    module = make(kind)
    module.save_pretrained(tmp_path)
    live = Model.from_module(module).view("raw")
    saved = Model.from_pretrained(tmp_path).view("raw")
    assert live.family.title == saved.family.title == (CASES | FLAT)[kind][1]
    logits = run(module, IDS).logits[0]
    for source, model in {"live": live, "disk": saved}.items():
        for oracle in ("OV", "FF", "mixers", "unembedding", "folding", "disk=memory"):
            with subtests.test(oracle=oracle, source=source):
                ORACLES[oracle](module, live, model)
        with subtests.test(source=source):
            trace = model.trace(IDS[0].tolist())
            close(trace.logits, logits)
            found = trace.contributions(7)
            assert abs(found.total - found.logit) < 2e-4 * (1 + abs(found.logit))
