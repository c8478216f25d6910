"""Encoders."""

from __future__ import annotations

from tests.families.zoo.options import (
    BERT,
    DEBERTA,
    LLAMA,
    Variant,
)

ENCODERS = [
    Variant("bert", "bert", BERT, masked=True),
    Variant("bert-untied", "bert", BERT | {"tie_word_embeddings": False}, masked=True),
    Variant("roberta", "roberta", BERT | {"pad_token_id": 1}, masked=True),
    Variant("xlm-roberta", "xlm-roberta", BERT | {"pad_token_id": 1}, masked=True),
    Variant("electra", "electra", BERT | {"embedding_size": 16}, masked=True),
    Variant("electra-as-wide", "electra", BERT | {"embedding_size": 24}, masked=True),
    Variant("albert", "albert", BERT | {"embedding_size": 16, "num_hidden_layers": 3}, masked=True),
    Variant(
        "albert-groups",
        "albert",
        BERT
        | {
            "embedding_size": 10,
            "num_hidden_layers": 3,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        },
        masked=True,
    ),
    Variant("data2vec", "data2vec-text", BERT | {"pad_token_id": 1}, masked=True),
    Variant("ernie-encoder", "ernie", BERT, masked=True),
    Variant("roberta-prenorm", "roberta-prelayernorm", BERT | {"pad_token_id": 1}, masked=True),
    Variant("xlm-roberta-xl", "xlm-roberta-xl", BERT | {"pad_token_id": 1}, masked=True),
    Variant("megatron-bert", "megatron-bert", BERT, masked=True),
    Variant("nomic-bert", "nomic_bert", BERT | {"hidden_act": "silu"}, masked=True),
    Variant("mpnet", "mpnet", BERT | {"pad_token_id": 1}, masked=True),
    Variant(
        "deberta-v2",
        "deberta-v2",
        DEBERTA
        | {"type_vocab_size": 2, "position_biased_input": True, "max_relative_positions": 4},
        masked=True,
    ),
    Variant(
        "deberta-v3",
        "deberta-v2",
        DEBERTA
        | {
            "position_buckets": 4,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "legacy": False,
        },
        masked=True,
    ),
    Variant("deberta-content", "deberta-v2", DEBERTA | {"pos_att_type": ["c2p"]}, masked=True),
    Variant(
        "eurobert",
        "eurobert",
        LLAMA | {"attention_bias": True, "mlp_bias": True},
        masked=True,
    ),
    Variant(
        "distilbert",
        "distilbert",
        {
            "vocab_size": 37,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 3,
            "hidden_dim": 20,
            "max_position_embeddings": 32,
        },
        masked=True,
    ),
    Variant(
        "modernbert",
        "modernbert",
        BERT | {"num_hidden_layers": 4, "local_attention": 4, "hidden_size": 24, "pad_token_id": 0},
        masked=True,
    ),
    Variant(
        "modernbert-biased",
        "modernbert",
        BERT | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "pad_token_id": 0},
        masked=True,
    ),
]
