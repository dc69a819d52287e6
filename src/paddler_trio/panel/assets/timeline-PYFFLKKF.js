import{F as i,S as t,y as e}from"./chunk-I7OYIAXH.js";function o(){return e(t,{title:"Timeline",children:e(i,{icon:"timeline",title:"Nothing to show"})})}export{o as default};
