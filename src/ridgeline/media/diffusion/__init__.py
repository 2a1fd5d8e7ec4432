"""Pictures: a prompt and noise become an image or a clip.

A request passes these files, in this order:

    loading.py            a folder becomes a Pipeline; pipeline_class.py: the classes of pipelines that are built
    pipeline.py           the Pipeline: plan, encode, denoise, decode
    request.py            a DiffusionRequest, and the Plan that it becomes
    geometry.py           how many pixels, latents and tokens; noise.py: what a seed draws
    batching.py           which pictures and passes go in one call of the denoiser
    text_encoder.py       a prompt becomes states; t5_encoder.py, flux_encoder.py: of other pipelines
    schedules.py          noise levels from noise to data; scheduler_config.py: those that a pipeline was released with;
                          timestep_call.py: what its class of pipelines asks of them
    samplers.py           from one level to the next
    guidance.py           two predictions become one
    decoding.py           latents become pixels; clip_autoencoder.py: of clips
    picture_file.py       pixels become a file; clip_file.py: of clips; saved_latents.py: latents do

Other ways through a step: step_cache.py skips most of a pass, pipeline.py has torch compile its blocks, pair.py has two
processes run one pass each (pair_process.py starts the second, which runs pair_child.py). strides.py takes a request
apart for a server, which has others to run in between.

What a request will take:

    price.py              seconds, FLOPs, bytes and memory of each stage; clip_decoder.py: of a clip's decode;
                          forecast.py: of a loaded pipeline's request
    division.py           a request on several cards; eager.py: a pass in which nothing is fused
    outline.py            the parts of a release on meta
    plan.py               what `ridgeline plan` says; plan_page.py and plan_comparison.py: its documents
    beside_picture.py     a clip's parameters and latents beside a picture's
"""
