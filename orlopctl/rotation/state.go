package rotation

import (
	"slices"
)

// state is the progress of a machine in a rotation.
type state int

const (
	stateBefore state = iota
	accepted          // the new value is accepted
	issues            // the new value issues or encrypts, and the old value is still accepted
	newOnly           // the old value is dropped
)

// stateOf returns the state of a machine in the rotation to the value next. own is the value with
// which the machine issues or encrypts. beside has the other values that the machine accepts.
func stateOf[T any](same func(T, T) bool, own T, beside []T, next T) state {
	switch isNext := func(o T) bool { return same(o, next) }; {
	case !isNext(own) && !slices.ContainsFunc(beside, isNext):
		return stateBefore
	case !isNext(own):
		return accepted
	case len(beside) > 0:
		return issues
	}
	return newOnly
}

// stepOf returns the values own and beside that the machine has one state later.
func stepOf[T any](same func(T, T) bool, own T, beside []T, next T) (T, []T) {
	switch stateOf(same, own, beside, next) {
	case stateBefore:
		return own, append(slices.Clone(beside), next)
	case accepted:
		others := slices.DeleteFunc(slices.Clone(beside), func(o T) bool { return same(o, next) })
		return next, append([]T{own}, others...)
	}
	return own, nil
}

// progress is the state of a machine in a rotation.
type progress struct {
	at        state
	takesPart bool // the machine has the value that the rotation replaces
}

// plannedStep is a step to state `to`. machines are the indices of the machines that still have to
// perform the step.
type plannedStep struct {
	to       state
	machines []int
}

// plan returns the remaining steps, each with its machines in the given order. All machines must
// have performed a step before any machine performs the next step. The plan is empty if all
// machines that take part are in the last state.
func plan(order []int, all []progress) []plannedStep {
	var steps []plannedStep
	for to := stateBefore + 1; to <= newOnly; to++ {
		step := plannedStep{to: to}
		for _, i := range order {
			if all[i].takesPart && all[i].at < to {
				step.machines = append(step.machines, i)
			}
		}
		if len(step.machines) > 0 {
			steps = append(steps, step)
		}
	}
	return steps
}

// order returns the order in which n machines perform a step: control-plane machines first. As soon
// as a worker has performed the step, it requests certificates from control-plane machines, and
// these certificates must be issued by the new CA. roles is empty if the roles are unknown.
func order(n int, roles []machineRole) []int {
	var first, then []int
	for i := range n {
		if i < len(roles) && roles[i].controlPlane {
			first = append(first, i)
		} else {
			then = append(then, i)
		}
	}
	return append(first, then...)
}
