"""A language model beside pipelines of pictures: one loop steps both, one application answers for both."""
