"""What kind of value each entry of a config is, where families read it.

A `config.json` comes from others; an entry of the wrong kind is refused by name when it is read.
Entries that are not listed here are left as they are: a registered family may have its own.
"""

from __future__ import annotations

from lexray.checkpoint.fields import Kind, flag, listing, mapping, number, text, whole

_WHOLE = """
    hidden_size n_embd n_embed dim word_embed_proj_dim
    num_attention_heads n_head n_heads num_heads num_key_value_heads num_kv_heads head_dim
    num_hidden_layers n_layer n_layers num_layers
    intermediate_size hidden_dim ffn_dim ffn_hidden_size n_inner
    moe_intermediate_size shared_expert_intermediate_size
    num_experts num_local_experts num_experts_per_tok decoder_sparse_step
    n_routed_experts n_shared_experts n_group topk_group first_k_dense_replace
    num_shared_experts prefix_dense_intermediate_size prefix_dense_sliding_window_pattern
    moe_num_experts moe_k moe_num_shared_experts moe_layer_start_index moe_layer_interval
    kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim intermediate_size_mlp
    interleave_moe_layer_step attention_chunk_size experts_per_token
    shared_intermediate_size d_model attention_heads max_seq_len
    d_kv d_ff num_decoder_layers relative_attention_num_buckets relative_attention_max_distance
    encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim
    encoder_attention_heads decoder_attention_heads
    embedding_size num_hidden_groups inner_group_num conv_kernel_size
    position_buckets max_relative_positions
    vocab_size pad_token_id rotary_dim num_ln_in_parallel_attn
    max_position_embeddings original_max_position_embeddings n_positions seq_length
    sliding_window window_size local_attention max_window_layers
    mamba_expand mamba_d_ssm mamba_n_heads mamba_n_groups mamba_d_state mamba_num_heads
    mamba_head_dim n_groups ssm_state_size moe_latent_size moe_shared_expert_intermediate_size
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim
    kv_n_heads moe_top_k top_k_experts
    global_head_dim num_global_key_value_heads num_kv_shared_layers
    hidden_size_per_layer_input vocab_size_per_layer_input
    altup_num_inputs altup_active_idx laurel_rank
    dim_model_base linear_head_dim linear_num_heads
    num_dense_layers block_multiple_of block_ff_dim
    sliding_window_pattern _sliding_window_pattern global_attn_every_n_layers no_rope_layer_interval
"""
_NUMBER = """
    layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps logit_scale
    rope_theta local_rope_theta global_rope_theta rope_local_base_freq
    rotary_pct rope_pct rotary_emb_base partial_rotary_factor
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar clip_qkv
    factor low_freq_factor high_freq_factor attention_factor beta_fast beta_slow
    lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier
    ssm_in_multiplier ssm_out_multiplier block_ffn_dim_multiplier
    mscale mscale_all_dim alpha llama_4_scaling_beta
    norm_eps norm_epsilon embedding_multiplier logits_scaling residual_multiplier
    scale_emb scale_depth router_scaling_factor attention_value_scale
    floor_scale attn_scale attention_multiplier
    route_scale routed_scaling_factor router_jitter_noise
"""
_FLAG = """
    scale_decoder_outputs relative_attention share_att_key position_biased_input legacy
    mup_enabled attention_k_eq_v use_double_wide_mlp enable_moe_block altup_correct_scale
    block_auto_adjust_ff_dim rope_interleave attn_temperature_tuning
    scale_embedding tie_word_embeddings use_parallel_residual parallel_attn multi_query alibi
    new_decoder_architecture use_sliding_window qk_layernorm use_qk_norm norm_topk_prob
    scale_attn_weights scale_attn_by_inverse_layer_idx layer_norm_elementwise_affine is_decoder
    do_layer_norm_before apply_residual_connection_post_layernorm _remove_final_layer_norm truncate
"""
_TEXT = """
    model_type hidden_act activation_function activation hidden_activation classifier_activation
    feed_forward_proj norm_rel_ebd
    rope_type type topk_method expert_selection_fn shared_expert_combination_strategy
"""
_LIST = """
    moe_layers mlp_multipliers
    layer_types mlp_layer_types no_rope_layers mlp_only_layers attention_types attention_layers
    short_factor long_factor
"""
KINDS: dict[str, Kind] = {
    name: kind
    for kind, names in (
        (whole, _WHOLE),
        (number, _NUMBER),
        (flag, _FLAG),
        (text, _TEXT),
        (listing, _LIST),
        (mapping, "rope_parameters rope_scaling attn_config linear_attn_config encoder decoder"),
    )
    for name in names.split()
}
