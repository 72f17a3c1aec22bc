"""Record formats 0, 1 and 2: views, builders, codecs, Arrow columns, kernels and serializers."""
