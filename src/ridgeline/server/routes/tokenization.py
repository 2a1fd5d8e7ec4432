"""The routes /tokenize, /detokenize and /v1/chat/completions/render, which do not run the model."""

from ridgeline.server.errors import invalid
from ridgeline.server.event_loop import offload_if_long
from ridgeline.server.routes.chat_completions import render
from ridgeline.server.routes.logprobs import TokenNames
from ridgeline.server.routes.request_fields import ChatFields, DetokenizeFields, TokenizeFields
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.server_settings import ServerSettings


async def tokenize(fields: TokenizeFields, model: ServedModel, settings: ServerSettings) -> dict[str, object]:
    """Return the token ids of a prompt or of a conversation, in vLLM's format.

    Raises:
        ApiError: If the request is invalid.
    """
    model.check_name(fields.model)
    if fields.prompt is not None:
        ids = await model.encode(fields.prompt, add_special=fields.add_special_tokens is not False)
    elif fields.messages:
        ids = (await render(fields, model, settings)).ids
    else:
        raise invalid("give a prompt or messages", "prompt", code="missing_field")
    names = TokenNames(model.tokenizer)
    return {
        "count": len(ids),
        "max_model_len": model.info.context,
        "tokens": ids,
        "token_strs": [names.text(token) for token in ids] if fields.return_token_strs else None,
    }


async def detokenize(fields: DetokenizeFields, model: ServedModel) -> dict[str, object]:
    """Return the text of token ids, with control tokens spelled out.

    Raises:
        ApiError: If an id is out of vocabulary, or the model is not served here.
    """
    model.check_name(fields.model)
    ids = fields.tokens
    model.check_ids(ids, "tokens")
    return {"prompt": await offload_if_long(len(ids), lambda: model.tokenizer.decode(ids, skip_special=False))}


async def rendered(fields: ChatFields, model: ServedModel, settings: ServerSettings) -> dict[str, object]:
    """Return the prompt that the chat template renders from a conversation, as text and token ids.

    Raises:
        ApiError: If the request is invalid.
    """
    model.check_name(fields.model)
    prompt = await render(fields, model, settings)
    return {
        "prompt": prompt.text,
        "prompt_token_ids": prompt.ids,
        "count": len(prompt.ids),
        "max_model_len": model.info.context,
    }
