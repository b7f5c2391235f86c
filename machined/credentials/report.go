package credentials

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
)

// Report returns the certificates of the machine for the health of the cluster. err is the error of
// listing them; with an error, the report has only this problem.
func Report(list []State, err error) (all []*api.MachineCertificate) {
	if err != nil {
		return []*api.MachineCertificate{{Problem: err.Error()}}
	}
	for _, c := range list {
		one := &api.MachineCertificate{File: c.File, Problem: c.Problem}
		if c.Problem == "" {
			one.Expires = timestamppb.New(c.Expires)
		}
		if !c.Renews.IsZero() {
			one.Renews = timestamppb.New(c.Renews)
		}
		all = append(all, one)
	}
	return all
}
