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

// healthService describes gRPC's health service with all methods as streams; on the wire they are
// identical to unary methods. For a unary method, gRPC reads the message before it calls the
// interceptor. A client with a certificate without a role could then fill the memory of apid with
// large messages.
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

// single describes a unary method of the health service as a stream. It sets ServerStreams, because
// gRPC calls the stream interceptor, which authorizes the call, only for streaming methods.
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

// limitedReflection is the reflection service with a limit on the size of requests. Each response
// contains the request twice. Without the limit, a client that sends large requests and reads no
// responses could fill the memory of apid.
type limitedReflection struct {
	reflectionpb.ServerReflectionServer
}

// maxQuestion is the largest size of a reflection request, in bytes. The longest name of the API
// has 60 bytes.
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
		return nil, status.Errorf(codes.InvalidArgument, "reflection: a request of %d bytes exceeds the limit of %d", proto.Size(r), maxQuestion)
	}
	return r, err
}
