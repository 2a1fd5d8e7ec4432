"""Pictures: a prompt and noise become an image or a clip.

`loading.py` makes a `Pipeline` (`pipeline.py`) of a folder; `pipeline_class.py` is the table of those that are built. A
`Request` becomes a `Plan` (`request.py`); its texts become states (`text_encoder.py`); `geometry.py` is how large
everything is, `noise.py` what a seed draws, `batching.py` what the denoiser is asked for in one call. A sampler
(`samplers.py`) walks a schedule (`schedules.py`) from noise to data, asking the denoiser at each step, with or without
guidance (`guidance.py`; `pair.py` has two processes share it, `pair_process.py` starts the second, which runs
`pair_child.py`); `scheduler_config.py` reads which of them a pipeline was released with. `step_cache.py` skips most of
a pass where it may, `compiled.py` has torch compile blocks. `decoding.py` makes pixels of latents (of clips by
`clip_autoencoder.py`), `picture_file.py` and `clip_file.py` make files of pixels, `saved_latents.py` of latents.
`strides.py` takes all of that apart for a server, which has other requests to run in between.

Pricing: `price.py` says before all that what a request will take; `picture_decoder.py` and `clip_decoder.py` price its
decode, `eager.py` a pass in which nothing is fused, `division.py` several cards, and `forecast.py` asks it for a
pipeline that is loaded. `outline.py` makes the parts of a release of the catalogue on meta; `plan.py` is what
`ridgeline plan` says of it, `plan_page.py` and `plan_comparison.py` are its documents.
"""
