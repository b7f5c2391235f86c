package repair

import (
	"fmt"
	"regexp"
	"strconv"
)

// Trigger is the rule by which a check gives orders: only while the number of its unhealthy
// machines is in a range.
type Trigger struct {
	// The check repairs machines only while the number of unhealthy machines is Min to Max.
	Min, Max int
}

// maxPercent is the maximum percentage.
const maxPercent = 100

var rangePattern = regexp.MustCompile(`^\[([0-9]+)-([0-9]+)\]$`)

// ParseTrigger returns the rule of a check that covers the given number of machines. most is a
// maximum: a number, or a percentage like 40%, which is converted to a number and rounded down.
// inRange is a range like [1-3], and takes precedence over most. If both are empty, the check
// repairs any number of machines.
func ParseTrigger(most, inRange string, machines int) (Trigger, error) {
	if inRange != "" {
		m := rangePattern.FindStringSubmatch(inRange)
		if m == nil {
			return Trigger{}, fmt.Errorf("unhealthyInRange %q: expected a range such as [1-3]", inRange)
		}
		low, errLow := strconv.Atoi(m[1])
		high, errHigh := strconv.Atoi(m[2])
		if errLow != nil || errHigh != nil || low > high {
			return Trigger{}, fmt.Errorf("unhealthyInRange %q: expected a range such as [1-3], the smaller number first", inRange)
		}
		return Trigger{low, high}, nil
	}
	if most == "" {
		return Trigger{0, machines}, nil
	}
	text, percent := most, false
	if last := len(most) - 1; most[last] == '%' {
		text, percent = most[:last], true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > maxPercent {
		return Trigger{}, fmt.Errorf("unhealthyLessThanOrEqualTo %q: expected a number, or a percentage of at most 100%%", most)
	}
	if percent {
		n = machines * n / maxPercent
	}
	return Trigger{0, n}, nil
}

// Stopped returns the reason why a check with this number of unhealthy machines gives no orders;
// empty if the check gives orders.
func (t Trigger) Stopped(unhealthy, machines int) string {
	if unhealthy >= t.Min && unhealthy <= t.Max {
		return ""
	}
	return fmt.Sprintf("%d of %d machines are unhealthy, and the check repairs machines only if %d to %d are", unhealthy, machines, t.Min, t.Max)
}
