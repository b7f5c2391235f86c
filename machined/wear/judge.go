package wear

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Record is the state of a disk's errors.
type Record struct {
	Errors uint64 `json:"errors"` // at the last reading
	// last growth of the number; zero: none since the first reading
	Grew time.Time `json:"grew,omitzero"`
}

// next returns the record after a reading. The errors of the first reading (known is false) are old
// and do not count as growth. A number that falls, for example because sectors were written again,
// is the base of the next comparison.
func next(before Record, known bool, errors uint64, now time.Time) Record {
	if known && errors > before.Errors {
		before.Grew = now
	}
	before.Errors = errors
	return before
}

const (
	// growth is the time for which a growth of errors is a problem: it usually continues within
	// weeks.
	growth = 30 * 24 * time.Hour
	// worn is the share of the rated life, in percent, from which a disk should be replaced soon.
	worn = 90
)

// judge returns the problem of a disk, for which it must be replaced, and the remarks on it, for
// which it need not be at once; each is empty if there is none.
func judge(l Log, r Record, now time.Time) (problem, remark string) {
	var problems []string
	for _, f := range l.Failures {
		problems = append(problems, string(f))
	}
	if l.SparePercent != nil && l.SpareThreshold != nil && *l.SparePercent < *l.SpareThreshold && !slices.Contains(l.Failures, FailureSpare) {
		problems = append(problems, fmt.Sprintf("%d %% of its spare blocks are left, less than its threshold of %d %%", *l.SparePercent, *l.SpareThreshold))
	}
	if !r.Grew.IsZero() && now.Sub(r.Grew) < growth {
		problems = append(problems, fmt.Sprintf("its errors grew to %d on %s", l.Errors, r.Grew.UTC().Format(time.DateOnly)))
	}
	if len(problems) > 0 {
		problem = strings.Join(problems, ", ") + ": replace it"
	}
	var remarks []string
	if l.UsedPercent != nil && *l.UsedPercent >= worn {
		remarks = append(remarks, fmt.Sprintf("%d %% of its rated life are used: plan its replacement", *l.UsedPercent))
	}
	if l.OutOfRange {
		remarks = append(remarks, "its temperature is out of range: check its cooling")
	}
	return problem, strings.Join(remarks, "; ")
}
