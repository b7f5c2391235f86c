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

// healthService describes the health service with all of its methods as streams; on the wire a
// unary call is the same. For a unary call, gRPC reads the message before it calls the interceptor,
// so a client with a certificate without role could make apid hold large messages.
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

// single is a unary method of the health service as a stream. ServerStreams is set because gRPC
// calls the stream interceptor, which authorizes the call, only for methods that stream in a
// direction.
func single[R any](name string, do func(context.Context, healthpb.HealthServer, *R) (any, error)) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
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

// limitedReflection is the reflection service with a limit on questions: each answer contains its
// question twice, so a client that sends long questions and reads no answers could make apid hold
// much memory.
type limitedReflection struct {
	reflectionpb.ServerReflectionServer
}

// maxQuestion is in bytes; the longest name of the API has 60.
const maxQuestion = 1 << 10

// ServerReflectionInfo implements reflectionpb.ServerReflectionServer.
func (b limitedReflection) ServerReflectionInfo(stream reflectionpb.ServerReflection_ServerReflectionInfoServer) error {
	return b.ServerReflectionServer.ServerReflectionInfo(limitedReflectionStream{stream})
}

type limitedReflectionStream struct {
	reflectionpb.ServerReflection_ServerReflectionInfoServer
}

// Recv implements reflectionpb.ServerReflection_ServerReflectionInfoServer.
func (s limitedReflectionStream) Recv() (*reflectionpb.ServerReflectionRequest, error) {
	r, err := s.ServerReflection_ServerReflectionInfoServer.Recv()
	if err == nil && proto.Size(r) > maxQuestion {
		return nil, status.Errorf(codes.InvalidArgument, "reflection: a question of %d bytes exceeds the limit of %d", proto.Size(r), maxQuestion)
	}
	return r, err
}
