"""The OpenAI API over HTTP and SSE; knows no Ray and no llama.cpp."""
