package apid

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// healthService describes the health service with all of its methods as streams: on the wire a call
// of one message is the same. gRPC reads the message of any other call before it asks the gate, so
// that whoever has a certificate of no role could have it hold much.
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

// brief is the reflection service for questions as people ask them: each answer has its question in
// it, twice, so that long ones to which nobody reads the answer would be held.
type brief struct {
	reflectionpb.ServerReflectionServer
}

// longestQuestion is in bytes; the longest name of the API has 60.
const longestQuestion = 1 << 10

// ServerReflectionInfo implements reflectionpb.ServerReflectionServer.
func (b brief) ServerReflectionInfo(stream reflectionpb.ServerReflection_ServerReflectionInfoServer) error {
	return b.ServerReflectionServer.ServerReflectionInfo(briefStream{stream})
}

type briefStream struct {
	reflectionpb.ServerReflection_ServerReflectionInfoServer
}

// Recv implements reflectionpb.ServerReflection_ServerReflectionInfoServer.
func (s briefStream) Recv() (*reflectionpb.ServerReflectionRequest, error) {
	r, err := s.ServerReflection_ServerReflectionInfoServer.Recv()
	if err == nil && proto.Size(r) > longestQuestion {
		return nil, status.Errorf(codes.InvalidArgument, "reflection: a question of %d bytes; at most are %d", proto.Size(r), longestQuestion)
	}
	return r, err
}
