package apid

import (
	"context"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// healthService describes the health service with all of its methods as streams: on the wire a call of one message is the same. gRPC reads
// the message of any other call before it asks the gate, so that whoever has a certificate of no role could have it hold much.
func healthService() *grpc.ServiceDesc {
	out := healthpb.Health_ServiceDesc
	out.Methods = nil
	out.Streams = []grpc.StreamDesc{
		single("Check", func(ctx context.Context, srv healthpb.HealthServer, r *healthpb.HealthCheckRequest) (any, error) {
			return srv.Check(ctx, r)
		}),
		single("List", func(ctx context.Context, srv healthpb.HealthServer, r *healthpb.HealthListRequest) (any, error) {
			return srv.List(ctx, r)
		}),
	}
	out.Streams = append(out.Streams, healthpb.Health_ServiceDesc.Streams...)
	return &out
}

// single is a method of the health service with one request and one answer.
func single[R any](name string, do func(context.Context, healthpb.HealthServer, *R) (any, error)) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, Handler: func(srv any, stream grpc.ServerStream) error {
		request := new(R)
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		answer, err := do(stream.Context(), srv.(healthpb.HealthServer), request)
		if err != nil {
			return err
		}
		return stream.SendMsg(answer)
	}}
}
