"""Images and video: a prompt and noise become an image or a video.

A request passes these files, in this order:

    pipeline_loader.py        a folder becomes a Pipeline; pipeline_class.py: the classes of pipelines that are built
    pipeline.py               the Pipeline: plan, encode, denoise, decode diffusion_request.py      a DiffusionRequest,
    and the Plan that it becomes geometry.py               how many pixels, latents and tokens; noise.py: what a seed
    draws batching.py               which pictures and passes go in one call of the denoiser text_encoder.py           a
    prompt becomes states; t5_encoder.py, flux_encoder.py: of other pipelines schedules.py              noise levels
    from noise to data; scheduler_config.py: those that a pipeline was released with;
                              timestep_call.py: what its class of pipelines asks of them
    samplers.py               from one level to the next
    guidance.py               two predictions become one
    decoding.py               latents become pixels; video_autoencoder.py: of clips
    image_file.py             pixels become a file; video_file.py: of clips; saved_latents.py: latents do

Other ways through a step: step_cache.py skips most of a pass, pipeline.py has torch compile its blocks, cfg_parallel.py
has two processes run one pass each (cfg_parallel_process.py starts the second, which runs cfg_parallel_child.py).
work_units.py takes a request apart for a server, which has others to run in between.

What a request will take:

    pipeline_price.py         seconds, FLOPs, bytes and memory of each stage; video_decode_price.py: of a clip's decode;
                              forecast.py: of a loaded pipeline's request
    diffusion_parallel.py     a request on several cards; eager.py: a pass in which nothing is fused
    pipeline_defaults.py      the parts of a release on meta pipeline_plan.py          what `ridgeline plan` says;
    pipeline_plan_page.py and pipeline_plan_comparison.py: its documents image_comparison.py       a clip's parameters
    and latents beside a picture's
"""
