import sys, os; sys.path[:0]=['src','tests/kernels']
import time, jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import cupy, toys
print(cupy.__version__, jax.__version__, jax.devices())
from dalembert.kernels import cuda, csource
from dalembert.kernels.run import run, _describe
from dalembert.kernels.xla import XlaSession
def bench(name, F, consts, loop, N, steps, axes=None, xla=False):
    d=_describe(F[0],F[1],consts,loop,None,1,steps,N,axes)
    low=d.lowered(); p=low.program
    for cap in (None,168,128,96):
        threads=64; csource.THREADS=cuda.THREADS=threads; cuda.OPTIONS=('--std=c++17','--fmad=false')+(() if cap is None else ('--maxrregcount=%d'%cap,)); cuda._kernel.cache_clear()
        t=time.time(); s=cuda.CudaSession(d,low); t=time.time()-t
        s.reserve(1); s.run(0,1,steps,0)
        b=s.buffers; counts=(s.limit,0,1,steps,b.stride,0,b.stride,b.control_stride)
        args=(s.shared,s.varying,s.state,s.controls,s.records_room,*map(np.int64,counts))
        ts=[]
        for _ in range(4):
            e0,e1=cupy.cuda.Event(),cupy.cuda.Event(); e0.record(); s.kernel((s.blocks,),(threads,),args); e1.record(); e1.synchronize(); ts.append(cupy.cuda.get_elapsed_time(e0,e1)/1e3)
        from cupy_backends.cuda.api import driver as dr
        regs,local=dr.funcGetAttribute(4,s.kernel.ptr),dr.funcGetAttribute(3,s.kernel.ptr)
        st=s.loop(); status=getattr(st,'status',None)
        print(name,"cap",cap,"compile",round(t,2),"ops",p.operations,"setup",sum(p.count("setup").values()),"regs",regs,"local",local,"ps/traj-step",min(ts)/N/steps*1e12, "failed", None if status is None else int((status!=0).sum()), flush=True)
    if xla:
        x=XlaSession(d); x.reserve(1); x.run(0,1,2,0); jax.block_until_ready(x.state)
        t0=time.perf_counter(); x.run(0,1,20,0); jax.block_until_ready(x.state); t=time.perf_counter()-t0
        print(name,"xla ps/traj-step",t/N/20*1e12,flush=True)
N=1<<20
l=toys.start(); ll=jax.tree.map(lambda x: np.stack([x]*N), l); ll["x"]=ll["x"]+np.random.default_rng(0).normal(size=(N,3))*.3
0 and bench("toy",(toys.advance,toys.observe),toys.consts(),ll,N,1000)
import dalembert as da
from dalembert.models.registry import MODELS
from dalembert.integrators.registry import METHODS
from dalembert.simulate import functions
for method in [dict(name="euler-poincare-suslov",lagrangian="moser-veselov",retraction="cayley"),dict(name="euler-poincare-suslov",lagrangian="retraction",retraction="cayley"),dict(name="runge-kutta")]:
    o=dict(method); integ=METHODS[o.pop("name")].make(o); m=MODELS["suslov"]; s=m.make(m.example)
    F=functions(integ,False); consts=(s,jnp.asarray(0.05))
    mom=np.random.default_rng(0).normal(size=(N,2))*2
    st=jax.vmap(lambda q: s.state(momentum=q))(jnp.asarray(mom)) 
    loop,_=jax.jit(jax.vmap(F.start,in_axes=(None,0,None)))(consts,st,None)
    loop=jax.tree.map(np.asarray,loop)
    bench("suslov "+str(list(method.values())),(F.advance,F.observe),consts,loop,N,1000)
