"""Which test checks each equation that the pages of the algorithms link to.

Each file of tests is followed by its tests, and each test by the links whose equation it checks.
"""

ORACLES = """
tests/algos/test_a2c.py
  test_the_targets_are_n_step_returns_bootstrapped_where_the_episode_goes_on_or_was_cut
    nets/actor_critic_loss.py: actor_critic_loss, Mnih et al. 2016, algorithm S3
  test_entropy_is_subtracted_with_its_weight_and_the_value_error_added_with_its
    nets/actor_critic_loss.py: actor_critic_loss, Mnih et al. 2016, section 4
tests/algos/test_acer.py
  test_the_policy_gradient_is_algorithm_2s_projected_in_each_state
    nets/actor_q.py: policy_step, Wang et al. 2017, eq. 12
  test_update_takes_the_step_of_gradients_and_moves_the_average_by_its_decay
    algos/acer.py: update, Wang et al. 2017, section 3.3
  test_the_q_loss_is_the_squared_error_to_retrace_bootstrapped_from_the_true_successors
    nets/actor_q.py: discrete_estimates, Wang et al. 2017, algorithm 2
  test_traces_are_cut_at_the_dth_root_of_the_ratio_and_v_moves_by_the_truncated_ratio
    nets/actor_q.py: continuous_estimates, Wang et al. 2017, eq. 14
tests/algos/test_async_nstep_q.py
  test_the_target_is_the_sum_of_rewards_to_the_last_step_and_the_target_networks_best_value_there
    algos/async_q.py: nstep_q_targets, Mnih et al. 2016, algorithm S2
tests/algos/test_async_q.py
  test_the_target_is_the_reward_and_the_target_networks_best_value_after_it_unless_the_episode_terminated
    algos/async_q.py: q_targets, Mnih et al. 2016, algorithm 1
tests/algos/test_async_sarsa.py
  test_the_target_has_the_target_networks_value_of_the_next_action_also_if_the_next_step_takes_it
    algos/async_q.py: sarsa_targets, Mnih et al. 2016, section 4
tests/algos/test_async_together.py
  test_the_gradient_is_that_of_the_mean_square_with_the_target_held_constant
    algos/async_q.py: loss, Mnih et al. 2016, algorithms 1 and S2
tests/algos/test_ddpg.py
  test_the_critics_loss_is_the_mean_square_of_the_bellman_error_with_the_target_networks
    algos/ddpg.py: critic_loss, Lillicrap et al. 2016, eqs. 4 and 5
  test_the_actors_gradient_is_the_deterministic_policy_gradient_of_eq_6
    algos/ddpg.py: actor_loss, Lillicrap et al. 2016, eq. 6
tests/algos/test_dpg.py
  test_the_critics_slope_is_the_same_for_every_action_and_its_value_at_the_preferred_one_is_v
    nets/compatible.py: CompatibleActorCritic.action_values, Silver et al. 2014, section 4.3
  test_nothing_follows_a_terminated_step_and_a_cut_episode_goes_on
    algos/dpg.py: td_errors
  test_one_step_moves_theta_w_and_v_as_copdac_q_says
    algos/dpg.py: learn
  test_with_the_exact_critic_the_policy_gradient_is_that_of_the_return
    algos/dpg.py: policy_gradient, Silver et al. 2014, theorem 1
tests/algos/test_dqn.py
  test_the_error_is_reward_plus_discounted_value_of_the_best_next_action_minus_q
    algos/dqn.py: compare_transitions, Mnih et al. 2015, algorithm 1
    algos/dqn.py: compare_transitions, van Hasselt et al. 2016, eq. 4
  test_each_error_is_weighed_by_its_chance_to_the_minus_beta_over_the_largest_such_weight
    algos/dqn.py: loss, Schaul et al. 2016, section 3.4
tests/algos/test_ppo.py
  test_the_policy_gradient_is_0_where_the_ratio_has_left_the_clip_in_the_direction_of_the_advantage
    algos/ppo.py: loss, Schulman et al. 2017, section 3
  test_entropy_is_subtracted_with_its_weight_and_the_value_error_added_with_its
    algos/ppo.py: loss, Schulman et al. 2017, eq. 9
tests/algos/test_qac.py
  test_less_its_mean_q_has_the_same_expected_step_with_less_variance
    algos/qac.py: critic_targets_q, Sutton & Barto 2018, eq. 13.10
  test_the_state_values_move_towards_the_reward_and_the_next_value_which_is_held_still
    algos/qac.py: critic_targets_v, Sutton & Barto 2018, eqs. 13.12 to 13.14
  test_actor_and_critic_step_at_rates_of_their_own
    algos/qac.py: update, One-step Actor-Critic of Sutton & Barto 2018
tests/algos/test_reinforce.py
  test_reward_to_go_is_the_explicit_sum_to_the_episodes_end
    algos/reinforce.py: returns_to_go, Sutton & Barto 2018, eq. 3.8
  test_whatever_the_baseline_the_mean_of_the_gradient_stays
    algos/reinforce.py: loss, Sutton & Barto 2018, eqs. 13.11 and 13.8
  test_the_entropy_bonus_moves_towards_the_rarer_arm_by_its_weight
    algos/reinforce.py: loss, Williams & Peng 1991
tests/algos/test_sac.py
  test_the_target_counts_the_entropy_of_the_next_action_at_the_temperature
    algos/sac.py: targets_of, Haarnoja et al. 2018, section 4.2
  test_the_actors_loss_is_minus_the_smaller_value_less_the_entropy_at_the_temperature
    algos/sac.py: actor_loss, Haarnoja et al. 2018, section 6
  test_the_temperatures_slope_is_the_entropy_above_its_target
    algos/sac.py: temperature_loss, Haarnoja et al. 2018, section 5
tests/algos/test_td3.py
  test_exploration_noise_is_in_half_widths_and_each_number_of_each_environment_has_its_own
    algos/td3.py: act, Fujimoto et al. 2018, algorithm 1
  test_smoothing_noise_is_clipped_and_each_number_has_its_own
    algos/td3.py: smoothed, Fujimoto et al. 2018, section 5.3
  test_the_target_is_the_smaller_value_of_the_two_target_critics
    algos/td3.py: targets_of, Fujimoto et al. 2018, section 4.2
  test_the_critics_loss_is_the_sum_of_both_mean_squared_errors_to_one_target
    nets/critics.py: critic_loss, Fujimoto et al. 2018, algorithm 1
  test_the_actor_climbs_the_first_critic_by_the_chain_rule
    algos/td3.py: actor_loss, Silver et al. 2014, eq. 9
  test_targets_move_by_the_target_rate_to_the_new_networks
    algos/td3.py: learn_actor, Fujimoto et al. 2018, section 5.2
tests/algos/test_trpo.py
  test_eq_14_the_loss_is_minus_the_mean_of_ratio_times_advantage_over_valid_steps
    algos/trpo.py: loss, Schulman et al. 2015, eq. 14
tests/maths/test_exploration.py
  test_ornstein_uhlenbeck_noise_has_the_stationary_variance_of_its_closed_form
    maths/exploration.py: ornstein_uhlenbeck, Uhlenbeck & Ornstein 1930
  test_the_action_distance_is_the_root_mean_square_over_states_and_dimensions
    maths/exploration.py: action_distance, Plappert et al. 2018, for DDPG
  test_the_scale_grows_up_to_the_target_distance_and_shrinks_beyond_it
    maths/exploration.py: adapt_noise_scale, Plappert et al. 2018, section 3
tests/maths/test_losses.py
  test_policy_gradient_is_sutton_and_barto_equation_13_5_over_all_actions
    maths/losses.py: policy_gradient, Williams 1992
    maths/losses.py: policy_gradient, Sutton & Barto 2018, eq. 13.5
  test_value_loss_is_the_mean_squared_error_of_sutton_and_barto_equation_9_1
    maths/losses.py: value_loss, Sutton & Barto 2018, eq. 9.1
  test_normalized_advantages_have_mean_0_and_deviation_1_over_valid
    maths/losses.py: normalize
  test_surrogate_is_schulman_2015_equation_14_with_the_policy_gradient_at_the_old_policy
    maths/losses.py: _ratios
    maths/losses.py: surrogate, Schulman et al. 2015, eq. 14
  test_clipped_surrogate_is_schulman_2017_equation_7
    maths/losses.py: clipped_surrogate, Schulman et al. 2017, eq. 7
  test_kl_penalised_surrogate_is_schulman_2017_equation_8
    maths/losses.py: kl_penalised_surrogate, Schulman et al. 2017, eq. 8
  test_clipped_value_loss_is_the_larger_of_the_two_errors
    maths/losses.py: clipped_value_loss, OpenAI Baselines' PPO2
  test_huber_1964_is_half_the_square_up_to_delta_and_a_line_of_slope_delta_beyond
    maths/losses.py: huber, Huber 1964
tests/maths/test_returns.py
  test_discounted_returns_are_the_explicit_sum
    maths/returns.py: discounted_returns, Sutton & Barto 2018, eq. 3.9
  test_sarsa_targets_are_sutton_and_barto_equation_6_7
    maths/returns.py: sarsa_targets, Sutton & Barto 2018, eq. 6.7
  test_gae_is_schulman_2016_equation_16
    maths/returns.py: gae, Schulman et al. 2016, eq. 16
  test_retrace_is_munos_2016_equation_3
    maths/returns.py: retrace, Munos et al. 2016, eq. 3
tests/maths/test_scaled.py
  test_samples_are_those_of_the_gaussian_scaled
    maths/gaussians.py: ScaledGaussian
tests/maths/test_squashed.py
  test_with_gsde_a_bounded_action_is_the_tanh_of_the_gaussians_sample
    maths/gaussians.py: BoundedGaussian._squash
  test_the_density_of_a_bounded_action_is_per_unit_of_the_action_and_integrates_to_1
    maths/gaussians.py: BoundedGaussian._log_density
  test_the_log_density_is_the_gaussians_minus_the_log_of_the_slope_of_tanh
    maths/gaussians.py: SquashedGaussian._log_density, Haarnoja et al. 2018, appendix C
  test_a_sample_has_the_exact_log_density_even_where_all_actions_round_to_one
    maths/gaussians.py: log_slopes
tests/maths/test_state_dependent.py
  test_the_noise_is_the_matrix_times_the_features
    maths/gaussians.py: exploration_noise
  test_the_variance_of_an_action_is_the_sum_of_squares_of_features_times_deviations
    maths/gaussians.py: state_dependent_gaussian
tests/maths/test_truncated.py
  test_wang_2017_equation_9_is_the_exact_gradient_in_expectation_for_any_truncation
    maths/truncated.py: softmax_objective, Wang et al. 2017, eq. 9
  test_dueling_values_of_the_sampled_actions_have_the_state_value_as_their_mean
    maths/truncated.py: dueling_values, Wang et al. 2017, eq. 13
  test_wang_2017_algorithm_3_is_the_exact_gradient_in_expectation
    maths/truncated.py: gaussian_objective, Wang et al. 2017, algorithm 3
tests/maths/test_trust_region.py
  test_appendix_c_the_quadratic_model_of_the_kl_at_the_full_step_is_delta
    maths/trust_region.py: natural_step, Schulman et al. 2015, appendix C
  test_the_fisher_product_of_a_network_is_the_finite_difference_of_its_kl
    maths/trust_region.py: fisher_vector_product, Schulman et al. 2015, appendix C.1
  test_a_step_is_halved_until_the_loss_is_lower_and_equal_is_not_lower
    maths/trust_region.py: line_search
  test_a_gradient_beyond_the_trust_region_is_projected_to_k_z_equals_delta
    maths/trust_region.py: project, Wang et al. 2017, eq. 12
tests/maths/test_value_distributions.py
  test_midpoints_and_atoms_are_evenly_spaced
    maths/value_distributions.py: midpoints, Dabney et al. 2018, lemma 2
    maths/value_distributions.py: atoms, Bellemare et al. 2017, section 4.1
  test_the_mean_of_a_backup_is_reward_plus_discounted_mean
    maths/value_distributions.py: QuantileValues.backup, Dabney et al. 2018, algorithm 1
  test_quantile_huber_is_dabney_2018_equation_10_by_hand
    maths/value_distributions.py: quantile_huber, Dabney et al. 2018, eq. 10
  test_the_projection_is_bellemare_2017_algorithm_1
    maths/value_distributions.py: project, Bellemare et al. 2017, eq. 7
  test_the_categorical_loss_is_the_cross_entropy_and_its_gradient_probability_minus_target
    maths/value_distributions.py: CategoricalValues.loss, Bellemare et al. 2017, algorithm 1
    maths/value_distributions.py: CategoricalValues.loss, Hessel et al. 2018
tests/nets/test_optimizers.py
  test_rmsprop_is_pytorchs_or_tensorflows_from_the_first_step_on
    nets/optimizers.py: make_optimizer, Tieleman & Hinton 2012, as PyTorch has it
  test_soft_update_is_lillicrap_2016_algorithm_1_and_exact_for_rates_of_0_and_1
    nets/optimizers.py: soft_update, Lillicrap et al. 2016, algorithm 1
  test_shared_rmsprop_is_mnih_2016_equations_s2_and_s3_in_place
    nets/optimizers.py: shared_rmsprop, Mnih et al. 2016, eqs. S2 and S3
tests/nets/test_values.py
  test_dueling_values_have_the_state_value_as_their_mean
    nets/values.py: QNetwork.__call__, Wang et al. 2016, eq. 9
tests/rollouts/test_replay.py
  test_n_step_targets_are_the_explicit_sums_over_any_episodes_rollout_borders_and_the_rings_end
    rollouts/replay.py: _gather, Sutton & Barto 2018, eq. 7.1
  test_transitions_are_drawn_in_proportion_to_their_errors_to_the_alpha
    rollouts/replay.py: _set_errors, Schaul et al. 2016, eq. 1
"""


def oracles_by_link() -> dict[str, list[str]]:
    """For the words of each link, [file, name] of the test that checks its equation."""
    found: dict[str, list[str]] = {}
    current = ["", ""]
    for line in ORACLES.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if depth == 2:
            found[line.strip()] = list(current)
        else:
            current[depth] = line.strip()
    return found
