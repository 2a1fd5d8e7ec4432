"""Image and video generation with diffusion models: from a prompt and noise to an image or a video.

A request passes through these files, in this order:

    pipeline_loader.py        loads a folder as a Pipeline; pipeline_class.py lists the supported pipeline classes
    pipeline.py               the Pipeline: plan, encode, denoise, decode
    diffusion_request.py      a DiffusionRequest, and the DiffusionPlan made from it
    geometry.py               the numbers of pixels, latents and tokens
    noise.py                  the noise that a seed produces
    batching.py               the images and guidance passes that share one call of the denoiser
    text_encoder.py           encodes a prompt; t5_encoder.py and flux_encoder.py do so for other pipelines
    schedules.py              noise levels from noise to data; scheduler_config.py reads a release's schedule;
                              timestep_call.py has the arguments that a pipeline class passes to its scheduler
    samplers.py               step from one noise level to the next
    guidance.py               combines two predictions into one
    decoding.py               decodes latents to pixels; video_autoencoder.py does so for videos
    image_file.py             writes pixels to a file; video_file.py does so for videos, saved_latents.py for latents

Other ways to run a step: step_cache.py skips most blocks of a pass, pipeline.py compiles the blocks with torch.compile,
and cfg_parallel.py runs the two guidance passes in two processes (cfg_parallel_process.py starts the second one, which
runs cfg_parallel_child.py). work_units.py splits a request into units, so that a server can interleave other requests.

Estimates of what a request costs:

    pipeline_price.py         seconds, FLOPs, bytes and memory of each stage; video_decode_price.py: of a video decode;
                              forecast.py: of a request to a loaded pipeline
    diffusion_parallel.py     a request on several GPUs; eager.py: a pass without fused kernels
    pipeline_defaults.py      builds the parts of a release on the meta device
    pipeline_plan.py          the text of `ridgeline plan`; pipeline_plan_page.py and pipeline_plan_comparison.py
                              write its documents
    image_comparison.py       compares the parameters and latents of a video model with those of an image model
"""
