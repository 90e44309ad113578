// A policy that `birl export --format onnx` wrote, run by onnxruntime.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// An input or output: its name, type and shape, and the memory that onnxruntime reads or writes.
struct Port {
    std::string name;
    ONNXTensorElementDataType type;
    std::vector<int64_t> shape;
    std::vector<char> bytes;
};

struct Type {
    const char* name;
    size_t bytes;
};

inline Type describe(ONNXTensorElementDataType type) {
    switch (type) {
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return {"bool", 1};
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return {"uint8", 1};
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return {"int32", 4};
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return {"int64", 8};
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return {"float32", 4};
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return {"float64", 8};
        default: throw std::runtime_error("type " + std::to_string(type) + " of ONNX is not known to this example");
    }
}

class Policy {
public:
    explicit Policy(const std::string& path) : session_(environment_, path.c_str(), options()) {
        Ort::AllocatorWithDefaultOptions allocator;
        // The value is JSON: the algorithm, the ports with their meaning, and the spaces.
        if (!session_.GetModelMetadata().LookupCustomMetadataMapAllocated("birl policy", allocator))
            throw std::runtime_error(path + " is no policy of Birl; write one with birl export RUN --format onnx");
        for (size_t i = 0; i < session_.GetInputCount(); i++)
            inputs_.push_back(port(session_.GetInputNameAllocated(i, allocator).get(), session_.GetInputTypeInfo(i)));
        for (size_t i = 0; i < session_.GetOutputCount(); i++)
            outputs_.push_back(
                port(session_.GetOutputNameAllocated(i, allocator).get(), session_.GetOutputTypeInfo(i)));
        require_simple(path);
        for (Port& port : inputs_) bind(port, input_names_, input_values_);
        for (Port& port : outputs_) bind(port, output_names_, output_values_);
    }

    Policy(const Policy&) = delete;  // onnxruntime has the addresses of the ports

    const std::vector<Port>& inputs() const { return inputs_; }
    const std::vector<Port>& outputs() const { return outputs_; }
    const Port& observation() const { return find(inputs_, "observation"); }
    const Port& action() const { return find(outputs_, "action"); }

    // The action for an observation. `episode_begins` empties the memory of a recurrent policy.
    // Nothing is allocated here except by onnxruntime itself.
    const Port& act(const std::vector<float>& observation, bool episode_begins) {
        for (Port& port : inputs_) {
            if (port.name == "observation") std::memcpy(port.bytes.data(), observation.data(), port.bytes.size());
            if (port.name == "resets") port.bytes[0] = episode_begins;
        }
        session_.Run(Ort::RunOptions{nullptr}, input_names_.data(), input_values_.data(), inputs_.size(),
                     output_names_.data(), output_values_.data(), outputs_.size());
        for (Port& port : inputs_)
            if (is_memory(port))
                std::memcpy(port.bytes.data(), find(outputs_, "new_" + port.name).bytes.data(), port.bytes.size());
        return action();
    }

private:
    static Ort::SessionOptions options() {
        Ort::SessionOptions made;
        made.SetIntraOpNumThreads(1);  // small networks are quicker, and as quick each time, in one thread
        made.SetInterOpNumThreads(1);
        return made;
    }

    static Port port(const char* name, const Ort::TypeInfo& info) {
        auto tensor = info.GetTensorTypeAndShapeInfo();
        size_t bytes = describe(tensor.GetElementType()).bytes * tensor.GetElementCount();
        return {name, tensor.GetElementType(), tensor.GetShape(), std::vector<char>(bytes)};
    }

    static void bind(Port& port, std::vector<const char*>& names, std::vector<Ort::Value>& values) {
        auto here = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
        names.push_back(port.name.c_str());
        values.push_back(Ort::Value::CreateTensor(here, port.bytes.data(), port.bytes.size(), port.shape.data(),
                                                  port.shape.size(), port.type));
    }

    static const Port& find(const std::vector<Port>& ports, const std::string& name) {
        for (const Port& port : ports)
            if (port.name == name) return port;
        throw std::runtime_error("the policy has no " + name + "; this example is for Box and Discrete spaces");
    }

    static bool is_memory(const Port& port) { return port.name.rfind("memory", 0) == 0; }

    void require_simple(const std::string& path) const {
        for (const Port& port : inputs_)
            if (port.name != "observation" && port.name != "resets" && !is_memory(port))
                throw std::runtime_error(path + " has the input " + port.name +
                                         "; this example fills observation, memory and resets only");
        if (observation().shape[0] != 1)
            throw std::runtime_error(path + " takes " + std::to_string(observation().shape[0]) +
                                     " observations in a call; export it with --batch-size 1");
        if (observation().type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
            throw std::runtime_error(path + " takes observations that are no float32; this example gives float32");
    }

    Ort::Env environment_{ORT_LOGGING_LEVEL_WARNING, "birl"};
    Ort::Session session_;
    std::vector<Port> inputs_, outputs_;
    std::vector<const char*> input_names_, output_names_;
    std::vector<Ort::Value> input_values_, output_values_;
};
