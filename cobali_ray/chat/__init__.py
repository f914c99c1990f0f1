"""What a chat looks like to a model: templates. Pure text work, without HTTP, llama.cpp and Ray."""
