// A control loop at a fixed rate: observe, ask the policy, act, wait for the next tick.
//
//   control_loop policy.onnx [--steps 500] [--rate HZ] [--seed 0] [--log steps.csv]
//
// The plant is CartPole or Pendulum, by the action of the policy; a robot has the same four functions.
// The rate is the plant's own; --rate 0 does not wait. The log has a line for each step: whether an episode begins, observation, action, reward.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <thread>

#include "plants.hpp"
#include "policy.hpp"

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

struct Options {
    std::string policy, log;
    int steps = 500;
    double rate = -1;  // steps of a second; negative: the plant's own
    unsigned seed = 0;
};

struct Latencies {
    Clock::duration total{}, worst{};
    int late = 0;  // steps that ended after their tick

    void add(Clock::duration latency) {
        total += latency;
        worst = std::max(worst, latency);
    }
};

struct Returns {
    double current = 0, sum = 0;
    int episodes = 0, steps = 0;  // finished episodes; steps of the current one

    void end_episode() {
        sum += current;
        episodes++;
        current = steps = 0;
    }
};

Options read(int count, char** words) {
    if (count < 2 || count % 2) throw std::runtime_error("usage: control_loop policy.onnx [--steps 500] [--rate HZ] [--seed 0] [--log FILE]");
    Options options;
    options.policy = words[1];
    for (int i = 2; i < count; i += 2) {
        const std::string name = words[i], value = words[i + 1];
        if (name == "--steps") options.steps = std::stoi(value);
        else if (name == "--rate") options.rate = std::stod(value);
        else if (name == "--seed") options.seed = unsigned(std::stoul(value));
        else if (name == "--log") options.log = value;
        else throw std::runtime_error(name + " is unknown; use --steps, --rate, --seed or --log");
    }
    return options;
}

template <typename Action>
void write(std::ostream& log, bool begins, const std::vector<float>& observation, Action action, double reward) {
    log << begins;
    for (float value : observation) log << ',' << value;
    log << ',' << action << ',' << reward << '\n';
}

void print(int steps, double rate, const Returns& returns, const Latencies& latencies) {
    std::printf("%d steps, whole episodes: %d, mean return %.1f\n", steps, returns.episodes,
                returns.episodes ? returns.sum / returns.episodes : returns.current);
    std::printf("policy: mean %.3f ms, worst %.3f ms\n", Milliseconds(latencies.total).count() / steps,
                Milliseconds(latencies.worst).count());
    if (rate > 0) std::printf("%g Hz, late steps: %d\n", rate, latencies.late);
}

template <typename Plant>
void require_fit(const Policy& policy) {
    if (policy.observation().bytes.size() != Plant().observe().size() * sizeof(float) ||
        policy.action().bytes.size() != sizeof(typename Plant::Action))
        throw std::runtime_error("the policy is for another environment; use one of CartPole-v1 or Pendulum-v1");
}

template <typename Plant>
void control(Policy& policy, const Options& options) {
    require_fit<Plant>(policy);
    Plant plant;
    Random random(options.seed);
    plant.reset(random);
    std::vector<float> observation = plant.observe();
    for (int i = 0; i < 10; i++) policy.act(observation, true);  // the first calls are slow

    std::ofstream log(options.log);
    log << std::setprecision(9);
    Latencies latencies;
    Returns returns;
    const double rate = options.rate < 0 ? Plant::RATE : options.rate;
    const auto period = std::chrono::duration<double>(rate > 0 ? 1 / rate : 0);
    auto tick = Clock::now();
    for (int step = 0; step < options.steps; step++) {
        const bool episode_begins = returns.steps == 0;
        const auto asked = Clock::now();
        const Port& answer = policy.act(observation, episode_begins);
        latencies.add(Clock::now() - asked);

        const auto* action = reinterpret_cast<const typename Plant::Action*>(answer.bytes.data());
        const double reward = plant.step(*action);
        if (log.is_open()) write(log, episode_begins, observation, *action, reward);
        returns.current += reward;
        returns.steps++;
        if (plant.fell() || returns.steps == Plant::LIMIT) {
            returns.end_episode();
            plant.reset(random);
        }
        observation = plant.observe();

        tick += std::chrono::duration_cast<Clock::duration>(period);
        if (Clock::now() > tick) {
            latencies.late++;
            tick = Clock::now();  // the steps after a late one do not hurry
        }
        std::this_thread::sleep_until(tick);
    }
    print(options.steps, rate, returns, latencies);
}

void print(const char* side, const std::vector<Port>& ports) {
    for (const Port& port : ports) {
        std::printf("%-7s %-16s %s[", side, port.name.c_str(), describe(port.type).name);
        for (size_t i = 0; i < port.shape.size(); i++) std::printf("%s%d", i ? ", " : "", int(port.shape[i]));
        std::printf("]\n");
    }
}

int main(int count, char** words) try {
    const Options options = read(count, words);
    Policy policy(options.policy);
    print("input", policy.inputs());
    print("output", policy.outputs());
    if (policy.action().type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) control<CartPole>(policy, options);
    else control<Pendulum>(policy, options);
} catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 1;
}
