package wear

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Record stores the number of errors of a disk and when it last grew.
type Record struct {
	Errors uint64 `json:"errors"` // number of errors at the last read
	// time at which a read last found more errors; zero: never since the first read
	Grew time.Time `json:"grew,omitzero"`
}

// next returns the record after a read that found a number of errors. known is false at the first
// read of a disk; its errors are old and do not count as growth. The number can also fall, for
// example because bad sectors were written again.
func next(before Record, known bool, errors uint64, now time.Time) Record {
	if known && errors > before.Errors {
		before.Grew = now
	}
	before.Errors = errors
	return before
}

const (
	// growth is the time for which a growth of errors is a problem. If a disk fails, its errors
	// usually grow again within weeks.
	growth = 30 * 24 * time.Hour
	// worn is the used percentage of the rated life from which an operator should plan a
	// replacement.
	worn = 90
)

// judge returns the problem for which a disk must be replaced at once, and the remark about a disk
// that can stay in use. Both are empty for a healthy disk.
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
