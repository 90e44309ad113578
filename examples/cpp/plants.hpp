// What is controlled, in place of a robot: CartPole-v1 and Pendulum-v1 with Gymnasium's physics.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using Random = std::mt19937;
constexpr double PI = 3.14159265358979323846;

inline double uniform(Random& random, double high) { return std::uniform_real_distribution<>(-high, high)(random); }

// Barto, Sutton and Anderson 1983: keep the pole up by pushing the cart to the left (0) or to the right (1).
struct CartPole {
    using Action = int64_t;
    static constexpr int LIMIT = 500;     // steps of an episode
    static constexpr double RATE = 50.0;  // steps of a second
    double x = 0, speed = 0, angle = 0, spin = 0;

    void reset(Random& random) {
        for (double* value : {&x, &speed, &angle, &spin}) *value = uniform(random, 0.05);
    }

    std::vector<float> observe() const { return {float(x), float(speed), float(angle), float(spin)}; }

    double step(Action action) {
        const double force = action == 1 ? 10.0 : -10.0;
        const double pole = 0.1, mass = 1.0 + pole, half_length = 0.5;
        const double push = (force + pole * half_length * spin * spin * std::sin(angle)) / mass;
        const double turn = (9.8 * std::sin(angle) - std::cos(angle) * push) /
                            (half_length * (4.0 / 3.0 - pole * std::cos(angle) * std::cos(angle) / mass));
        const double pull = push - pole * half_length * turn * std::cos(angle) / mass;
        x += 0.02 * speed;
        speed += 0.02 * pull;
        angle += 0.02 * spin;
        spin += 0.02 * turn;
        return 1.0;
    }

    bool fell() const { return std::abs(x) > 2.4 || std::abs(angle) > 12 * 2 * PI / 360; }
};

// Swing a pendulum up and hold it there, by a torque that is too weak to lift it at once.
struct Pendulum {
    using Action = float;
    static constexpr int LIMIT = 200;
    static constexpr double RATE = 20.0;
    double angle = 0, spin = 0;

    void reset(Random& random) {
        angle = uniform(random, PI);
        spin = uniform(random, 1.0);
    }

    std::vector<float> observe() const { return {float(std::cos(angle)), float(std::sin(angle)), float(spin)}; }

    double step(Action action) {
        const double torque = std::clamp(double(action), -2.0, 2.0);
        const double from_top = std::remainder(angle, 2 * PI);
        const double cost = from_top * from_top + 0.1 * spin * spin + 0.001 * torque * torque;
        spin = std::clamp(spin + 0.05 * (15.0 * std::sin(angle) + 3.0 * torque), -8.0, 8.0);
        angle += 0.05 * spin;
        return -cost;
    }

    bool fell() const { return false; }
};
