"""Tiny random models of many families of transformers, with a padded batch for each."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

_ENCODER = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
_DECODER = _ENCODER | {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
_GPT |= {"bos_token_id": 1, "eos_token_id": 2}
_PAIR = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2,
}  # fmt: skip
_T5 = {
    "vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "decoder_start_token_id": 0,
}  # fmt: skip
_IMAGES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model type: its class, a small configuration, and whether it reads text, image, speech, both, or a pair."""

    name: str
    cls: str
    options: dict[str, Any] = field(default_factory=dict)
    reads: str = "text"

    def make(self) -> Any:
        """A random model in evaluation mode, whose weights are large enough to make attention uneven."""
        cls = getattr(transformers, self.cls)
        torch.manual_seed(0)
        model = cls(cls.config_class(**self.options))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)
        return model.eval()

    def batch(self, model: Any, size: int) -> dict[str, Tensor]:
        """A batch; half of its texts are padded."""
        ids = torch.randint(5, 60, (size, 7))
        mask = torch.ones_like(ids)
        mask[: (size + 1) // 2, 4:] = 0
        texts = {"input_ids": ids, "attention_mask": mask}
        if self.reads == "pair":
            texts["decoder_input_ids"] = torch.randint(5, 60, (size, 5))
        if self.reads == "speech":
            return {
                "input_features": torch.randn(size, model.config.num_mel_bins, 2 * model.config.max_source_positions),
                "decoder_input_ids": torch.randint(5, 60, (size, 5)),
            }
        images = {}
        if "image" in self.reads:
            vision = getattr(model.config, "vision_config", model.config)
            images["pixel_values"] = torch.randn(size, 3, vision.image_size, vision.image_size)
        return images if self.reads == "image" else texts | images


SUPPORTED = [
    Family("bert", "BertModel", _ENCODER),
    Family("albert", "AlbertModel", _ENCODER | {"embedding_size": 8}),
    Family("roberta", "RobertaModel", _ENCODER),
    Family("xlm-roberta", "XLMRobertaModel", _ENCODER),
    Family("camembert", "CamembertModel", _ENCODER),
    Family("ernie", "ErnieModel", _ENCODER),
    Family("electra", "ElectraModel", _ENCODER | {"embedding_size": 8}),
    Family("distilbert", "DistilBertModel",
        {"vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    ),
    Family("layoutlm", "LayoutLMModel", _ENCODER),
    Family("mobilebert", "MobileBertModel",
        _ENCODER | {"embedding_size": 8, "true_hidden_size": 16, "intra_bottleneck_size": 16}
    ),
    Family("bert-generation", "BertGenerationEncoder", _ENCODER),
    Family("modernbert", "ModernBertModel",
        _ENCODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    ),
    Family("gpt2", "GPT2Model", _GPT),
    Family("opt", "OPTModel", _ENCODER | {"ffn_dim": 24, "word_embed_proj_dim": 16}),
    Family("ctrl", "CTRLModel", _GPT | {"dff": 24}),
    Family("gpt_neox", "GPTNeoXModel", _ENCODER),
    Family("phi", "PhiModel", _ENCODER),
    Family("llama", "LlamaModel", _DECODER),
    Family("mistral", "MistralModel", _DECODER | {"sliding_window": 4}),
    Family("qwen3", "Qwen3Model", _DECODER),
    Family("gemma2", "Gemma2Model", _DECODER | {"sliding_window": 4}),
    Family("gemma3_text", "Gemma3TextModel", _DECODER | {"sliding_window": 4}),
    Family("bart", "BartModel", _PAIR, "pair"),
    Family("marian", "MarianModel", _PAIR, "pair"),
    Family("pegasus", "PegasusModel", _PAIR, "pair"),
    Family("m2m_100", "M2M100Model", _PAIR, "pair"),
    Family("t5", "T5Model", _T5, "pair"),
    Family("mt5", "MT5Model", _T5, "pair"),
    Family("whisper", "WhisperModel",
        _PAIR | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20}, "speech"
    ),
    Family("clip", "CLIPModel",
        {"text_config": _ENCODER | {"eos_token_id": 2}, "vision_config": _IMAGES}, "text and image"
    ),
    Family("vit", "ViTModel", _IMAGES, "image"),
    Family("deit", "DeiTModel", _IMAGES, "image"),
    Family("dinov2", "Dinov2Model", _IMAGES, "image"),
    Family("swin", "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4},
        "image"
    ),
]  # fmt: skip
REFUSED = [
    Family("deberta", "DebertaModel", _ENCODER),
    Family("deberta-v2", "DebertaV2Model", _ENCODER),
    Family("xlnet", "XLNetModel", {"vocab_size": 60, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}),
    Family("mpnet", "MPNetModel", _ENCODER),
    Family("megatron-bert", "MegatronBertModel", _ENCODER),
    Family("nystromformer", "NystromformerModel", _ENCODER | {"num_landmarks": 4, "segment_means_seq_len": 8}),
    Family("convbert", "ConvBertModel", _ENCODER | {"embedding_size": 8}),
    Family("longformer", "LongformerModel", _ENCODER | {"attention_window": 4}),
    Family("big_bird", "BigBirdModel", _ENCODER),
    Family("xlm", "XLMModel", {"vocab_size": 60, "emb_dim": 16, "n_layers": 2, "n_heads": 2}),
    Family("flaubert", "FlaubertModel", {"vocab_size": 60, "emb_dim": 16, "n_layers": 2, "n_heads": 2}),
    Family("fsmt", "FSMTModel",
        {"langs": ["de", "en"], "src_vocab_size": 60, "tgt_vocab_size": 60, "d_model": 16, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}, "pair"
    ),
    Family("fnet", "FNetModel", _ENCODER),
    Family("gpt_oss", "GptOssModel",
        _DECODER | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
    ),
]  # fmt: skip
