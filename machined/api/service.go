package api

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// processService is service Service: the supervised processes.
type processService struct {
	api.UnimplementedServiceServer
	services *supervise.Manager
	event    func(source, kind, message string)
}

func (s processService) List(context.Context, *api.ListServicesRequest) (*api.ListServicesResponse, error) {
	all, _ := s.services.Status().Get()
	out := &api.ListServicesResponse{}
	for _, p := range all {
		one := &api.ServiceStatus{Name: p.Name, State: string(p.State), Detail: p.Detail, Pid: int32(p.PID), Restarts: p.Restarts, Since: timestamppb.New(p.Since)}
		for _, c := range p.Components {
			one.Components = append(one.Components, &api.Component{Name: c.Name, Ready: c.Ready, Detail: c.Detail, Since: timestamppb.New(c.Since)})
		}
		out.Services = append(out.Services, one)
	}
	return out, nil
}

func (s processService) Restart(ctx context.Context, r *api.RestartServiceRequest) (*api.RestartServiceResponse, error) {
	all, _ := s.services.Status().Get()
	service := supervise.Find(all, r.Name)
	if service.State == "" {
		return nil, noService(all, r.Name)
	}
	how, err := "restart", error(nil)
	switch {
	case !r.Kill:
		err = s.services.Restart(r.Name)
	case service.PID == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "service %s: has no process to kill, it is %s", r.Name, service.State)
	default:
		how, err = "kill", s.services.Signal(r.Name, unix.SIGKILL)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "service %s: cannot %s: %v", r.Name, how, err)
	}
	s.event("service/"+r.Name, "operation", how+" asked by "+caller(ctx))
	return &api.RestartServiceResponse{}, nil
}

// noService is the error for an unknown service. For a component it names the service of the
// component.
func noService(all []supervise.Status, name string) error {
	if owner := serviceOf(all, name); owner != "" {
		return status.Errorf(codes.FailedPrecondition, "service: %s is a component of service %s and does not restart alone; "+
			"restart the service with all its components: orlopctl service restart %s", name, owner, owner)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return status.Errorf(codes.NotFound, "service: %q does not exist; services: %s", name, strings.Join(names, ", "))
}

// serviceOf returns the service of a component; empty if there is none.
func serviceOf(all []supervise.Status, component string) string {
	for _, s := range all {
		for _, c := range s.Components {
			if c.Name == component && component != "" && c.Name != s.Name {
				return s.Name
			}
		}
	}
	return ""
}
