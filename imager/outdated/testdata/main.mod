module example.com/os

go 1.26.6

replace k8s.io/api => k8s.io/api v0.36.3

replace example.com/here => ./here

require (
	example.com/here v1.0.0
	example.com/accepted v1.0.0
	example.com/pseudo v0.0.0-20250222171855-c4b9df066048
	example.com/refused/v2 v2.0.25
	example.com/retracted v1.1.0
	k8s.io/api v0.36.3
	k8s.io/kubernetes v1.36.3
	k8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)

require (
	example.com/quiet v1.0.0 // indirect
	golang.org/x/net v0.59.0 // indirect
)
